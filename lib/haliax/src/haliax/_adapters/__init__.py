"""The only modules that import optional dependencies."""
