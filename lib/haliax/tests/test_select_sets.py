"""where, clip, triangles, padding, comparisons, sets and searches."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import AxisNotFoundError, AxisSpecError, BroadcastError

A, B = hax.make_axes(A=3, B=4)


@pytest.fixture
def x():
    return hax.named(np.random.default_rng(0).integers(0, 5, (3, 4)).astype(np.float32), (A, B))


def same(ours, theirs):
    np.testing.assert_array_equal(np.asarray(ours.array), np.asarray(theirs))


def test_where_broadcasts_all_three(x):
    r = np.asarray(x.array)
    same(hax.where(x > 2, x, 0), np.where(r > 2, r, 0))
    same(hax.where(hax.arange(B) > 1, x, -x), np.where(np.arange(4) > 1, r, -r))
    same(hax.where(True, x, 0.0), r)
    same(hax.where(jnp.array(False), x, hax.zeros(B)), np.zeros((3, 4)))
    assert hax.where(hax.named(True, ()), 1, 2).item() == 1
    assert jax.jit(lambda c: hax.where(c, x, 0.0))(True).names == ("A", "B")
    assert "cond" not in str(jax.make_jaxpr(lambda c: hax.where(c, x, 0.0).array)(True))
    with pytest.raises(AxisSpecError):
        hax.where(x > 2, x)
    with pytest.raises(BroadcastError):
        hax.where(x > 2, hax.ones({"Z": 2}), 0)
    places = hax.where(x > 2, fill_value=-1, new_axis=Axis("n", 12))
    assert len(places) == 2
    assert places[0].names == ("n",)
    same(hax.nonzero(x, size=Axis("n", 12))[1], np.asarray(jnp.nonzero(x.array, size=12)[1]))


def test_clip_and_isclose(x):
    same(hax.clip(x, 1, 3), np.clip(x.array, 1, 3))
    same(hax.clip(x, hax.ones(B), None), np.clip(x.array, 1, None))
    same(x.clip(1, 2), np.clip(x.array, 1, 2))
    assert hax.allclose(x, x + 1e-9)
    assert hax.isclose(x, 3.0).dtype == bool
    assert hax.array_equal(x, x.rearrange(("B", "A")))
    assert not hax.array_equal(x, x["A", 0])
    assert hax.array_equiv(hax.ones((A, B)), hax.ones(B))
    assert not hax.array_equiv(x, hax.ones({"Z": 2}))


def test_triangles_traces_and_diagonals():
    s = hax.arange({"z": 2, "i": 3, "j": 3}, dtype=float)
    r = np.asarray(s.array)
    same(hax.tril(s, "i", "j", k=-1), np.tril(r, -1))
    same(hax.triu(s, "j", "i"), np.triu(r.swapaxes(1, 2)))
    same(hax.trace(s, "i", "j"), np.trace(r, axis1=1, axis2=2))
    same(s.trace("i", "j", 1), np.trace(r, 1, axis1=1, axis2=2))
    assert hax.diagonal(s, "i", "j", "d").names == ("z", "d")
    with pytest.raises(AxisSpecError, match="two different axes"):
        hax.trace(s, "i", "i")
    with pytest.raises(AxisNotFoundError):
        hax.trace(s, "i", "zz")


def test_padding(x):
    same(hax.pad(x, {"B": (1, 2)}, constant_values=7), np.pad(x.array, ((0, 0), (1, 2)), constant_values=7))
    same(hax.pad(x, {"A": 1}, mode="edge"), np.pad(x.array, ((1, 1), (0, 0)), mode="edge"))
    assert hax.pad_left(x, B, Axis("B2", 6), -1).shape == {"A": 3, "B2": 6}
    with pytest.raises(AxisNotFoundError):
        hax.pad(x, {"zz": (1, 1)})
    with pytest.raises(AxisSpecError):
        hax.pad_left(x, B, Axis("B", 2))


def test_unique_family(x):
    r = np.asarray(x.array)
    U = Axis("u", len(np.unique(r)))
    values, index, inverse, counts = hax.unique(x, U, return_index=True, return_inverse=True, return_counts=True)
    same(values, np.unique(r))
    assert inverse.names == ("A", "B")
    same(values.take("u", inverse), r)
    same(counts, np.unique(r, return_counts=True)[1])
    assert index.names == ("u",)
    rows = hax.unique(hax.concatenate("A", [x, x]), Axis("u", 3), axis="A")
    assert rows.names == ("u", "B")
    same(hax.unique_values(x, U), np.unique(r))
    assert hax.unique_counts(x, U).counts.names == ("u",)
    assert hax.unique_inverse(x, U).inverse_indices.names == ("A", "B")
    assert hax.unique_all(x, U).indices.names == ("u",)


def test_searches_and_counts(x):
    edges = hax.named([1.0, 2.0, 4.0], "e")
    same(hax.searchsorted(edges, x), np.searchsorted([1.0, 2.0, 4.0], x.array))
    same(hax.digitize(x, edges), np.digitize(x.array, [1.0, 2.0, 4.0]))
    flat = x.ravel("n").astype(int)
    same(hax.bincount(flat, Axis("c", 6)), np.bincount(np.asarray(flat.array), minlength=6))
    with pytest.raises(AxisSpecError):
        hax.bincount(flat, Axis("c", 2), minlength=3)
    counts, bins = hax.histogram(x, Axis("h", 5))
    np.testing.assert_array_equal(counts.array, np.histogram(x.array, 5)[0])
    assert bins.names == ("h_edges",)
    bits = hax.arange({"n": 16}) % 3 == 0
    same(hax.unpackbits(hax.packbits(bits, "n"), "n"), np.asarray(bits.array, np.uint8))
    same(hax.isin(x, edges), np.isin(x.array, [1, 2, 4]))
    values, places = hax.top_k(x, "B", 2, new_axis="k")
    assert values.names == places.names == ("A", "k")
    same(values, -np.sort(-np.asarray(x.array), 1)[:, :2])
    with pytest.raises(AxisSpecError):
        hax.top_k(x, "B", 9)
    same(hax.partition(x, 1, "B").sum("B"), np.asarray(x.array).sum(1))
    same(hax.take_along_axis(x, hax.argsort(x, "B"), "B"), np.sort(x.array, 1))
    same(
        hax.interp(hax.named([1.5], "q"), hax.arange({"e": 3}, dtype=float), hax.arange({"e": 3}, dtype=float) * 10),
        [15.0],
    )
    same(hax.select([x > 3, x > 1], [x, -x], 0), np.select([x.array > 3, x.array > 1], [x.array, -x.array], 0))


def test_nmap_lifts_any_positional_function():
    m = hax.named(np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32), ("z", "i", "j"))
    inverse = hax.nmap(jnp.linalg.inv, "i j", "j i")(m.rearrange(("i", "z", "j")))
    assert inverse.names == ("z", "j", "i")
    product = hax.dot(m, inverse.rename({"i": "k"}), axis="j")
    np.testing.assert_allclose(product.array, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=1e-4)
    q, r = hax.nmap(jnp.linalg.qr, "i j", ["i k", "k j"])(m)
    np.testing.assert_allclose(hax.dot(q, r, axis="k").array, m.array, atol=1e-5)
    solved = hax.nmap(jnp.linalg.solve, ["i j", "i"], "j")(m, hax.ones({"b": 2, "i": 3}))
    assert solved.names == ("z", "b", "j")
    with pytest.raises(AxisNotFoundError):
        hax.nmap(jnp.linalg.inv, "i q", "q i")(m)
    with pytest.raises(AxisSpecError, match="dimensions"):
        hax.nmap(jnp.linalg.inv, "i j", "i")(m)
    assert hax.untag(m, "j", "z", "i").shape == (3, 2, 3)
