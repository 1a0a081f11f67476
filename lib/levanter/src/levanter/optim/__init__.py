"""Optimizers: a registry of configs, the schedules they share, and small gradient transforms.

This module imports nothing so that the plugin registry can scan the package lazily.
"""
