"""The only place of the ledger where heavy packages are imported."""
