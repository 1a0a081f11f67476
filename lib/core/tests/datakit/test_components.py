"""Connected components agree with a search that looks at nothing but neighbours."""

from hypothesis import given
from hypothesis import strategies as st
from marin.datakit.dedup.components import connected_components

NODES = st.sampled_from([f"n{i:02d}" for i in range(24)])
EDGES = st.lists(st.tuples(NODES, NODES), max_size=40)


def components_by_search(edges):
    neighbours = {}
    for left, right in edges:
        neighbours.setdefault(left, set()).add(right)
        neighbours.setdefault(right, set()).add(left)
    labels = {}
    for start in sorted(neighbours):
        if start in labels:
            continue
        reached, frontier = {start}, [start]
        while frontier:
            for other in neighbours[frontier.pop()] - reached:
                reached.add(other)
                frontier.append(other)
        labels |= dict.fromkeys(reached, start)
    return labels


@given(EDGES)
def test_labels_are_the_smallest_reachable_node(edges):
    assert connected_components(edges) == components_by_search(edges)


@given(EDGES, st.randoms(use_true_random=False))
def test_the_order_of_edges_does_not_matter(edges, random):
    shuffled = [edge[::-1] if random.random() < 0.5 else edge for edge in edges]
    random.shuffle(shuffled)
    assert connected_components(shuffled) == connected_components(edges)


def test_a_chain_of_a_hundred_thousand_nodes_is_one_component():
    chain = [(f"{i:06d}", f"{i + 1:06d}") for i in range(100_000)]
    assert set(connected_components(chain).values()) == {"000000"}
