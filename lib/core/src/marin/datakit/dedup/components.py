"""Connected components of a list of edges.

The problem: near-duplicate pairs come as edges between document ids, and every worker count must give the same
clusters. The idea: union by smallest id with path halving; the answer depends on the set of edges alone, not on their
order. Costs one dictionary entry a document that has an edge, so it runs in one process up to tens of millions of them.

Reference: Tarjan and van Leeuwen, Worst-case analysis of set union algorithms, J. ACM 31(2), 1984, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable


def connected_components(edges: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Label every node that has an edge with the smallest id of its component.

    Args:
        edges: Undirected edges; repeats and self-loops are allowed.
    Returns:
        Node to the smallest node of its component, sorted by node.
    Example:
        >>> connected_components([("c", "b"), ("b", "a"), ("x", "y")])
        {'a': 'a', 'b': 'a', 'c': 'a', 'x': 'x', 'y': 'x'}
    """
    parent: dict[str, str] = {}

    def find(node: str) -> str:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for left, right in edges:
        low, high = sorted((find(left), find(right)))
        parent[high] = low
    return {node: find(node) for node in sorted(parent)}
