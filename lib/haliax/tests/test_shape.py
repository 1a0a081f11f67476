"""Renaming, splitting, merging, joining."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import (
    ArrayTypeError,
    AxisCollisionError,
    AxisNotFoundError,
    AxisSizeMismatchError,
    AxisSpecError,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def test_rename_swaps_and_checks(array):
    assert array.rename({"B": "H", "H": "B"}).names == ("H", "B", "W", "D")
    assert array.rename({Axis("B", 2): Axis("C", 2)}).names == ("C", "H", "W", "D")
    with pytest.raises(AxisSizeMismatchError):
        array.rename({"B": Axis("C", 7)})
    with pytest.raises(AxisCollisionError):
        array.rename({"B": "H"})
    with pytest.raises(AxisNotFoundError):
        array.rename({"zz": "y"})
    assert array.rename({"zz": "y"}, strict=False).names == array.names


@settings(deadline=None)
@given(st.permutations(["B", "H", "W", "D"]), st.integers(1, 4))
def test_flatten_then_unflatten_is_the_identity(order, count):
    shape = {"B": 2, "H": 3, "W": 4, "D": 5}
    x = hax.arange(shape)
    chosen = order[:count]
    flat = x.flatten_axes(chosen, "F")
    back = flat.unflatten_axis("F", tuple(Axis(n, shape[n]) for n in chosen))
    assert hax.array_equal(back, x)
    reference = np.asarray(hax.rearrange(x, (*chosen, ...)).array).reshape(-1)
    assert np.array_equal(np.asarray(flat.rearrange(("F", ...)).array).reshape(-1), reference)


def test_flatten_places_the_new_axis_where_the_first_was(array):
    assert array.flatten_axes(("W", "H"), "F").names == ("B", "F", "D")
    assert array.flatten_axes((), "F").names == ("F", "B", "H", "W", "D")
    assert hax.flatten_axes((Axis("a", 2), Axis("b", 3)), "c") == Axis("c", 6)
    assert hax.flatten_axes((Axis("a", 2), Axis("b", 3)), ("a", "b"), Axis("c", 6)) == (Axis("c", 6),)
    with pytest.raises(AxisSizeMismatchError):
        array.flatten_axes(("H", "W"), Axis("F", 7))
    with pytest.raises(AxisSizeMismatchError):
        array.unflatten_axis("H", (Axis("a", 2), Axis("b", 2)))
    assert hax.ones({"a": 1, "b": 2}).unflatten_axis("a", ()).names == ("b",)
    assert array.ravel("F").shape == {"F": 120}
    assert array.flatten("F").names == ("F",)


def test_flatten_all_axes_but_merges_what_is_given_and_comes_back(array):
    flat, restore = hax.flatten_all_axes_but(array, "F", ("B", "W"), reorder_to_front=True)
    assert flat.shape == {"F": 8, "H": 3, "D": 5}
    assert hax.array_equal(restore(flat), array)
    assert restore(flat).names == array.names
    changed = restore(flat.rename({"H": "K"}))
    assert set(changed.names) == {"B", "W", "K", "D"}


def test_split_and_concatenate_are_inverse(array):
    pieces = array.split("D", [Axis("D", 2), Axis("D", 3)])
    assert [p.axis_size("D") for p in pieces] == [2, 3]
    assert hax.array_equal(hax.concatenate("D", pieces), array)
    with pytest.raises(AxisSizeMismatchError):
        array.split("D", [Axis("D", 2)])


def test_concatenate_reorders_and_checks(array):
    other = array.rearrange(("D", "W", "H", "B"))
    assert hax.concatenate("H", [array, other]).shape == {"B": 2, "H": 6, "W": 4, "D": 5}
    with pytest.raises(AxisSizeMismatchError):
        hax.concatenate(Axis("H", 5), [array, other])
    with pytest.raises(AxisSpecError):
        hax.concatenate("H", [array, array.rename({"B": "C"})])
    empty = hax.concatenate("H", [])
    assert empty.shape == {"H": 0}
    assert empty.dtype == jnp.float32


def test_stack_and_unbind_are_inverse(array):
    pieces = array.unbind("H")
    assert len(pieces) == 3
    assert hax.array_equal(hax.stack("H", pieces), array)
    with pytest.raises(AxisSpecError):
        hax.stack("H", [])
    with pytest.raises(AxisCollisionError):
        hax.stack("B", pieces)
    with pytest.raises(AxisSizeMismatchError):
        hax.stack(Axis("H", 4), pieces)


def test_roll_takes_scalars_only(array):
    for shift in (1, hax.named(1, ()), jnp.int32(1)):
        assert np.array_equal(array_roll := hax.roll(array, shift, "W").array, jnp.roll(array.array, 1, 2)), array_roll
    assert np.array_equal(hax.roll(array, (1, 2), ("W", "D")).array, jnp.roll(array.array, (1, 2), (2, 3)))
    with pytest.raises(ArrayTypeError):
        hax.roll(array, hax.arange({"B": 2}), "W")


def test_repeat_tile_flip_diff(array):
    assert np.array_equal(hax.repeat(array, 2, "H").array, jnp.repeat(array.array, 2, axis=1))
    tiled = hax.tile(array, {"H": 2, "new": 3})
    assert tiled.shape == {"new": 3, "B": 2, "H": 6, "W": 4, "D": 5}
    assert np.array_equal(tiled.array[1], jnp.tile(array.array, (1, 2, 1, 1)))
    assert np.array_equal(hax.flip(array, "W").array, jnp.flip(array.array, 2))
    assert np.array_equal(hax.diff(array, "W").array, jnp.diff(array.array, axis=2))


def test_creation_functions():
    X = Axis("x", 4)
    assert hax.zeros(X).dtype == jnp.float32
    assert hax.full(X, 3).dtype == jnp.int32
    assert hax.full({"x": 2}, 1.5).tolist() == [1.5, 1.5]
    assert hax.arange(X, start=2, step=3).tolist() == [2, 5, 8, 11]
    assert hax.arange(X, start=jnp.float32(1)).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert jax.jit(lambda s: hax.arange(X, start=s))(jnp.int32(5)).tolist() == [5, 6, 7, 8]
    assert hax.arange({"a": 2, "b": 2}).tolist() == [[0, 1], [2, 3]]
    assert hax.linspace("x", start=0, stop=1).shape == {"x": 50}
    assert np.allclose(hax.linspace(X, start=0, stop=3).array, [0, 1, 2, 3])
    assert np.allclose(hax.geomspace(X, start=1, stop=8).array, [1, 2, 4, 8])
    assert np.allclose(hax.logspace(X, start=0, stop=3).array, [1, 10, 100, 1000])
    assert hax.ones_like(hax.arange(X)).dtype == jnp.int32
    assert hax.full_like(hax.zeros(X), 2).tolist() == [2.0] * 4
    assert np.array_equal(hax.eye(X, Axis("y", 3)).array, np.eye(4, 3))
    with pytest.raises(AxisSpecError, match="no size"):
        hax.zeros("x")
