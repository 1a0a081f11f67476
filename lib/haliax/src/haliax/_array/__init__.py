"""`NamedArray`, the plans that turn names into positions, and the context that maps names to a mesh."""
