"""Things that happen between training steps: hooks, watching norms, profiling, a watchdog."""
