"""Experiments to learn from, smallest first."""
