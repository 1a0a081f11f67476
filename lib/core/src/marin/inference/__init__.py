"""Inference: sample from an exported model. `marin.inference.results` is plain data and imports no jax."""
