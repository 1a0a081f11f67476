"""Exchanging models with other libraries."""
