"""Implementation of ``rigging.resources``."""
