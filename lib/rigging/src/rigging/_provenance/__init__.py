"""Implementation of ``rigging.provenance``."""
