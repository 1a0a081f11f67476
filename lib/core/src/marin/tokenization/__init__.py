"""Tokenization: train a tokeniser on documents, and turn documents into a token cache that a trainer reads.

The problem: tokens are only meaningful beside the exact tokeniser that made them. The idea: both are artifacts; the
cache's ledger names the tokeniser's digest and refuses to be read with another one.
"""
