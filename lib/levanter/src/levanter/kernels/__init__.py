"""Numerical kernels on raw arrays, each with a plain reference beside it."""
