"""`named_jit`: compiled functions of arbitrary pytrees."""
