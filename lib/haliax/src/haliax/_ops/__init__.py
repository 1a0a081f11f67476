"""Operations on named arrays, one module per family. They plug themselves into NamedArray as methods."""
