"""Starting a run again when it died of something that a restart cures."""
