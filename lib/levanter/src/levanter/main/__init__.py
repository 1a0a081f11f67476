"""Entry points, run as ``python -m levanter.main.<name>``."""
