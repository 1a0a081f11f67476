"""Marin's core: steps whose outputs are addressed by name and version, and a ledger of every attempt at them.

Import the room that is needed: ``marin.execution`` (steps and runner), ``marin.ledger`` (what happened and why),
``marin.experiment`` (builders for whole pipelines). This package itself loads nothing.
"""
