"""The commands about stores as a whole."""
