"""What fsutil needs pyarrow for."""
