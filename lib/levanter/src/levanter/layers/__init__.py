"""Layers: attention and its masks, rotary positions, norms, linear maps, scanned stacks."""
