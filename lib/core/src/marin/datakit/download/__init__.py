"""Fetch a source into documents: one module a kind of source, each a plain function over a frozen config."""
