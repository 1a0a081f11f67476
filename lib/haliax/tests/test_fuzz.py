"""Differential fuzzing: random axes, orders and dtypes, against NumPy on positional arrays."""

import haliax as hax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SIZES = {"a": 2, "b": 3, "c": 1, "d": 4}
quick = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
orders = st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=4).map(tuple)
dtypes = st.sampled_from([np.float32, np.int32, np.bool_, jnp.bfloat16])


def make(names, dtype=np.float32, seed=0):
    data = np.random.default_rng(seed).integers(0, 5, [SIZES[n] for n in names]).astype(dtype)
    return hax.named(jnp.asarray(data), names), data


def lined_up(data, names, out):
    """Positional equivalent: transpose and insert size-1 dimensions."""
    order = [names.index(n) for n in out if n in names]
    data = np.transpose(data, order)
    return data.reshape([data.shape[[n for n in out if n in names].index(n)] if n in names else 1 for n in out])


@quick
@given(orders, st.data())
def test_binary_operations(names, data):
    other = tuple(data.draw(st.permutations(names)))[: data.draw(st.integers(0, len(names)))]
    dtype = data.draw(dtypes)
    (x, xr), (y, yr) = make(names, dtype), make(other, np.float32, 1)
    for op, ref in ((hax.add, jnp.add), (hax.maximum, jnp.maximum), (hax.less, jnp.less)):
        out = op(x, y)
        assert out.names == names
        expected = ref(jnp.asarray(xr), jnp.asarray(lined_up(yr, other, names)))
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(out.array), np.asarray(expected))


@quick
@given(orders, st.data())
def test_reductions(names, data):
    x, raw = make(names)
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    out = hax.sum(x, tuple(chosen))
    np.testing.assert_array_equal(np.asarray(out.array), raw.sum(tuple(names.index(c) for c in chosen)))
    assert out.names == tuple(n for n in names if n not in chosen)


@quick
@given(st.lists(orders, min_size=1, max_size=3), st.data())
def test_contractions(terms, data):
    present = sorted({n for t in terms for n in t})
    contracted = data.draw(st.lists(st.sampled_from(present), unique=True))
    arrays, raws = zip(*(make(t, seed=i) for i, t in enumerate(terms)), strict=True)
    kept = [n for n in present if n not in contracted]
    out = hax.dot(*arrays, axis=tuple(contracted), out_axes=tuple(kept))
    assert out.names == tuple(kept)
    expected = np.einsum(",".join("".join(t) for t in terms) + "->" + "".join(kept), *raws)
    np.testing.assert_allclose(np.asarray(out.array), expected, rtol=1e-4)


@st.composite
def index_expressions(draw, names):
    items = {}
    for n in names:
        kind = draw(st.sampled_from(["none", "int", "slice", "named", "ds"]))
        size = SIZES[n]
        if kind == "int":
            items[n] = draw(st.integers(-size, size - 1))
        elif kind == "slice":
            items[n] = slice(draw(st.integers(0, size)), draw(st.integers(0, size)), draw(st.sampled_from([1, 2])))
        elif kind == "named":
            axis = draw(st.sampled_from(["i", "j"]))
            items[n] = hax.named(np.array(draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2))), axis)
        elif kind == "ds":
            length = draw(st.integers(1, size))
            items[n] = hax.ds(draw(st.integers(0, size - length)), length)
    return items


def by_hand(raw, names, items):
    """Index one element at a time: a dict from output coordinates to values."""
    out = {}
    for where in np.ndindex(*raw.shape):
        coordinates = dict(zip(names, where, strict=True))
        for pick in np.ndindex(2, 2):
            free = dict(zip("ij", pick, strict=True))
            key = {}
            fits = True
            for n, position in coordinates.items():
                item = items.get(n)
                if item is None:
                    key[n] = position
                elif isinstance(item, int):
                    fits &= position == item % SIZES[n]
                elif isinstance(item, slice):
                    picked = list(range(*item.indices(SIZES[n])))
                    fits &= position in picked
                    key[n] = picked.index(position) if position in picked else 0
                elif isinstance(item, hax.dslice):
                    fits &= item.start <= position < item.start + item.size
                    key[n] = position - item.start
                else:
                    axis = item.names[0]
                    fits &= int(item.array[free[axis]]) == position
                    key[axis] = free[axis]
            if fits:
                out[tuple(sorted(key.items()))] = raw[where]
    return out


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(orders, st.data())
def test_reads_and_writes(names, data):
    x, raw = make(names)
    items = data.draw(index_expressions(names))
    out = x[items]
    expected = by_hand(raw, names, items)
    got = np.asarray(out.array)
    assert len(expected) == got.size
    for where in np.ndindex(*got.shape):
        assert got[where] == expected[tuple(sorted(zip(out.names, where, strict=True)))]
    written = x.at[items].set(-1) if items else x * 0 - 1
    touched = np.asarray(written.array) == -1
    reached = {float(v) for v in expected.values()}
    assert {float(v) for v in raw[touched]} == reached
    assert (np.asarray(written.array)[~touched] == raw[~touched]).all()
