"""Adaptors: what is trained beside a frozen model."""
