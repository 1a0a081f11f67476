"""Tools of the house: the workspace as data, isolated tests, lint, overrides, affected packages.

No package imports them.
"""
