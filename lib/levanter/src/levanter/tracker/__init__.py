"""Metrics back-ends: an interface, a registry of configs, one module per back-end.

This module imports nothing so that the plugin registry can scan the package lazily.
"""
