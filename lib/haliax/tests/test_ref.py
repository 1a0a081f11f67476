"""Mutable references."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import ds, new_ref
from haliax.errors import AxisNotFoundError, AxisSpecError


@pytest.fixture
def ref():
    return new_ref(hax.arange({"a": 4, "b": 6}))


def test_reads_and_writes(ref):
    raw = np.arange(24).reshape(4, 6).copy()
    assert np.array_equal(ref.value().array, raw)
    ref["a", 1] = 0
    raw[1] = 0
    ref["b", 2:4] = hax.ones({"b": 2, "a": 4}, int)
    raw[:, 2:4] = 1
    ref[{"a": [0, 2], "b": 5}] = 9
    raw[[0, 2], 5] = 9
    ref["b", ds(jnp.int32(0), 2)] = 7
    raw[:, :2] = 7
    ref["b", ::5] = 4
    raw[:, ::5] = 4
    assert np.array_equal(ref[...].array, raw)
    assert ref["a", 1, "b", 1:3].tolist() == raw[1, 1:3].tolist()
    assert np.array_equal(ref["a", hax.named([3, 0], "i")].array, raw[[3, 0]])
    assert hax.swap(ref, ("a", 0), 5).tolist() == raw[0].tolist()
    assert hax.get(ref, ("a", 0)).tolist() == [5] * 6
    assert hax.freeze(ref).names == ("a", "b")


def test_views_compose(ref):
    raw = np.arange(24).reshape(4, 6)
    view = ref.slice({"b": slice(1, 6, 2)})
    assert view.shape == {"a": 4, "b": 3}
    assert np.array_equal(view.value().array, raw[:, 1:6:2])
    again = view.slice({"b": slice(1, 3), "a": -1})
    assert again.axes[0].size == 2
    assert np.array_equal(again.value().array, raw[-1, [3, 5]])
    assert (again._prefix[1].start, again._prefix[1].size, again._prefix[1].stride) == (3, 2, 2)
    assert again.unsliced().shape == {"a": 4, "b": 6}
    again[...] = 0
    assert ref.value().array[3, 3] == 0
    assert ref.value().array[3, 4] == 22
    with pytest.raises(IndexError):
        ref.slice({"a": 9})
    with pytest.raises(ValueError, match="already fixed"):
        again.slice({"a": 0})
    with pytest.raises(AxisNotFoundError):
        ref.slice({"zz": 0})
    with pytest.raises(NotImplementedError):
        ref.slice({"a": [0, 1]}).slice({"a": 0})


def test_values_must_fit(ref):
    with pytest.raises(AxisSpecError):
        ref["a", 0] = hax.ones({"a": 4}, int)
    with pytest.raises(TypeError):
        ref["a", 0] = jnp.ones(6, int)
    with pytest.raises(TypeError):
        new_ref(jnp.ones(3))


def test_references_work_in_jit_scan_and_grad():
    ref = new_ref(hax.zeros({"t": 4}))

    @jax.jit
    def fill(r, i):
        r["t", i] = 1.0

    fill(ref, 2)
    assert ref.value().tolist() == [0, 0, 1, 0]

    def body(c, i):
        ref["t", i] = c
        return c + 1, None

    hax.scan(body, "t")(jnp.float32(0), hax.arange({"t": 4}))
    assert ref.value().tolist() == [0, 1, 2, 3]

    def loss(x):
        r = new_ref(x)
        r["t", 0] = 2.0
        return (r.value() ** 2).sum().scalar()

    assert jax.grad(loss)(hax.arange({"t": 3}, dtype=float)).tolist() == [0.0, 2.0, 4.0]
