"""Training: steps around levanter.

`marin.training.recipe` and `marin.training.artifacts` are plain data and import no jax; `marin.training.lm` trains and
`marin.training.export` writes the Hugging Face layout.
"""
