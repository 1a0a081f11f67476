"""Experiments: files that say what is tried. They consume the libraries; no library imports them."""
