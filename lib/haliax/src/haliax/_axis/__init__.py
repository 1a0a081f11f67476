"""Pure vocabulary of axes: names, sizes, selections and their algebra. Touches no arrays."""
