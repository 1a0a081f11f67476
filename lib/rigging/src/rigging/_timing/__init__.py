"""Implementation of ``rigging.timing``."""
