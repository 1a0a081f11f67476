"""`jax.tree`-style short names for `haliax.tree_util`."""

import haliax.tree_util as tree_util

flatten = tree_util.tree_flatten
leaves = tree_util.tree_leaves
map = tree_util.tree_map  # noqa: A001
scan_aware_map = tree_util.scan_aware_tree_map
structure = tree_util.tree_structure
unflatten = tree_util.tree_unflatten
