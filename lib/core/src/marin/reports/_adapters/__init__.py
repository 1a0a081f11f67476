"""The only place of the reports where heavy packages are imported."""
