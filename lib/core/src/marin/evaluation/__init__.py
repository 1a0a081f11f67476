"""Evaluation: measure an exported model. `marin.evaluation.results` is plain data and imports no jax."""
