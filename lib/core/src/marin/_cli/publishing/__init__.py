"""The commands that write for people."""
