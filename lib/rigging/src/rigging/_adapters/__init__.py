"""Libraries that are loaded when something needs them, and extras of the package; one module each."""
