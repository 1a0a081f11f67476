"""Sampling text from models."""
