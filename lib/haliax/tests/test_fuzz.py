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


# --- shapes, orders and dtypes of the rest of the surface -------------------------------------------------------------

wide_dtypes = st.sampled_from([np.float32, np.float16, np.int8, np.int32, np.uint8, np.bool_, np.complex64])
few = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])


@few
@given(orders, wide_dtypes, st.data())
def test_reductions_of_every_dtype(names, dtype, data):
    """Values equal NumPy's; the result type is JAX's (32-bit accumulation of small integers)."""
    x, raw = make(names, dtype)
    chosen = tuple(data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
    where = tuple(names.index(c) for c in chosen)
    for ours, numpy in ((hax.sum, np.sum), (hax.any, np.any), (hax.all, np.all), (hax.count_nonzero, np.count_nonzero)):
        np.testing.assert_allclose(np.asarray(ours(x, chosen).array), numpy(raw, axis=where), rtol=1e-2)
    if dtype is not np.complex64 and dtype is not np.bool_:
        for ours, numpy in ((hax.max, np.max), (hax.min, np.min)):
            out = ours(x, chosen)
            assert out.dtype == dtype
            np.testing.assert_array_equal(np.asarray(out.array), numpy(raw, axis=where))


@few
@given(orders, st.data())
def test_masked_reductions(names, data):
    x, raw = make(names)
    among = tuple(data.draw(st.permutations(names)))[: data.draw(st.integers(0, len(names)))]
    mask, mask_raw = make(among, np.bool_, 3)
    spread = np.broadcast_to(lined_up(mask_raw, among, names), raw.shape)
    axis = data.draw(st.sampled_from(names))
    at = names.index(axis)
    got = hax.sum(x, axis, where=mask)
    np.testing.assert_array_equal(np.asarray(got.array), np.where(spread, raw, 0).sum(at))
    highest = hax.max(x, axis, where=mask)
    np.testing.assert_array_equal(np.asarray(highest.array), np.where(spread, raw, -np.inf).max(at))


@few
@given(st.permutations("abcd").map(tuple), st.data())
def test_rearrange_strings(names, data):
    """Split one axis, merge two neighbours of a random order, transpose: as NumPy's reshape and transpose do."""
    x, raw = make(names)
    order = data.draw(st.permutations([n for n in names if n != "d"] + ["d1", "d2"]))
    left = " ".join("(d1 d2)" if n == "d" else n for n in names)
    start = data.draw(st.integers(0, len(order) - 2))
    right = [*order[:start], f"(m: {order[start]} {order[start + 1]})", *order[start + 2 :]]
    out = hax.rearrange(x, f"{left} -> {' '.join(right)}", d1=2)
    parts = [n for name in names for n in (("d1", "d2") if name == "d" else (name,))]
    sizes = {**SIZES, "d1": 2, "d2": 2}
    moved = raw.reshape([sizes[n] for n in parts]).transpose([parts.index(n) for n in order])
    shape = [sizes[n] for n in order]
    expected = moved.reshape([*shape[:start], shape[start] * shape[start + 1], *shape[start + 2 :]])
    np.testing.assert_array_equal(np.asarray(out.array), expected)
    assert out.names == (*order[:start], "m", *order[start + 2 :])


@few
@given(orders, st.data())
def test_running_and_ordering_functions(names, data):
    x, raw = make(names)
    axis = data.draw(st.sampled_from(names))
    at = names.index(axis)
    shift = data.draw(st.integers(-3, 3))
    for ours, expected in (
        (hax.cumsum(x, axis), raw.cumsum(at)),
        (hax.sort(x, axis), np.sort(raw, at)),
        (hax.roll(x, shift, axis), np.roll(raw, shift, at)),
        (hax.flip(x, axis), np.flip(raw, at)),
        (hax.argsort(x, axis, stable=True), np.argsort(raw, at, kind="stable")),
        (hax.concatenate(axis, [x, x.rearrange(tuple(reversed(names)))]), np.concatenate([raw, raw], at)),
        (hax.pad(x, {axis: (1, 2)}), np.pad(raw, [(1, 2) if i == at else (0, 0) for i in range(raw.ndim)])),
        (hax.diff(x, axis), np.diff(raw, axis=at)),
    ):
        assert ours.names == names
        np.testing.assert_array_equal(np.asarray(ours.array), expected)


@few
@given(orders, st.data())
def test_flattening_and_its_inverse(names, data):
    x, raw = make(names)
    chosen = tuple(data.draw(st.permutations(names)))[: data.draw(st.integers(1, len(names)))]
    flat = x.flatten_axes(chosen, "f")
    first = min(names.index(c) for c in chosen)
    rest = [n for n in names if n not in chosen]
    before = [n for n in rest if names.index(n) < first]
    order = [*before, *chosen, *(n for n in rest if n not in before)]
    moved = raw.transpose([names.index(n) for n in order])
    shape = [SIZES[n] for n in before] + [-1] + [SIZES[n] for n in order[len(before) + len(chosen) :]]
    np.testing.assert_array_equal(np.asarray(flat.array), moved.reshape(shape))
    back = flat.unflatten_axis("f", tuple(hax.Axis(c, SIZES[c]) for c in chosen))
    np.testing.assert_array_equal(np.asarray(back.rearrange(names).array), raw)


@few
@given(orders, st.data())
def test_loops_equal_python_loops(names, data):
    x, raw = make(names)
    axis = data.draw(st.sampled_from(names))
    at = names.index(axis)
    rest = tuple(n for n in names if n != axis)
    reverse = data.draw(st.booleans())
    start = hax.zeros({n: SIZES[n] for n in data.draw(st.permutations(rest))})
    total, partial = hax.scan(lambda c, v: (c * 2 + v, c), axis, reverse=reverse)(start, x)
    carry, seen = np.zeros([SIZES[n] for n in rest]), []
    rows = np.moveaxis(raw, at, 0)
    for row in rows[::-1] if reverse else rows:
        seen.append(carry)
        carry = carry * 2 + row
    assert total.names == start.names
    np.testing.assert_array_equal(np.asarray(total.rearrange(rest).array if rest else total.array), carry)
    stacked = np.stack(seen[::-1] if reverse else seen)
    np.testing.assert_array_equal(np.asarray(partial.rearrange((axis, *rest)).array), stacked)
    mapped = hax.vmap(lambda v: v * 2, axis)(x)
    np.testing.assert_array_equal(np.asarray(mapped.rearrange((axis, *rest)).array), rows * 2)
