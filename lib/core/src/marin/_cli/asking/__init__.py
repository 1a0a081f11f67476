"""The commands that ask a store."""
