"""Former private paths that tests and tools of other projects import. New code uses the public modules."""
