"""Broadcasting functions."""

import haliax as hax
import jax.numpy as jnp
import pytest
from haliax import Axis
from haliax.core import _broadcast_order
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, BroadcastError


def test_new_axes_go_in_front_in_the_order_given():
    x = hax.ones({"H": 3, "W": 4})
    assert hax.broadcast_axis(x, Axis("B", 2)).names == ("B", "H", "W")
    assert hax.broadcast_to(x, (Axis("B", 2), "H", Axis("C", 1), "W")).names == ("B", "H", "C", "W")
    assert hax.broadcast_to(x, ("W", "H")).names == ("W", "H")
    assert hax.broadcast_to(2.0, (Axis("B", 2),)).tolist() == [2.0, 2.0]


def test_order_is_kept_when_it_already_holds():
    x = hax.ones({"H": 3, "W": 4})
    out = hax.broadcast_to(x, ("H",), enforce_no_extra_axes=False)
    assert out.names == ("H", "W")
    assert hax.broadcast_to(x, ("W", Axis("B", 2), "H"), ensure_order=False).names == ("B", "H", "W")


def test_what_does_not_fit_is_refused():
    x = hax.ones({"H": 3})
    with pytest.raises(AxisNotFoundError):
        hax.broadcast_to(x, ("B", "H"))
    with pytest.raises(AxisSizeMismatchError):
        hax.broadcast_to(x, (Axis("H", 4),))
    with pytest.raises(AxisSpecError, match="lack"):
        hax.broadcast_to(x, (Axis("B", 2),))
    with pytest.raises(AxisSizeMismatchError):
        hax.broadcast_axis(x, Axis("H", 4))


def test_broadcast_arrays_prepends_the_axes_that_the_largest_lacks():
    big, small = hax.ones({"H": 30, "W": 4}), hax.ones({"B": 2, "W": 4})
    with pytest.raises(BroadcastError):
        hax.broadcast_arrays(big, small)
    out, axes = hax.broadcast_arrays_and_return_axes(big, None, small, 2.0, require_subset=False)
    assert [a.name for a in axes] == ["B", "H", "W"]
    assert out[0].names == out[2].names == ("B", "H", "W")
    assert out[1] is None
    assert out[3] == 2.0
    assert hax.broadcast_arrays_and_return_axes() == ((), ())
    (alone,), none = hax.broadcast_arrays_and_return_axes(3.0)
    assert alone.names == ()
    assert none == ()
    assert [a.name for a in _broadcast_order(big, hax.ones({"W": 4}))] == ["H", "W"]
    assert [a.name for a in _broadcast_order(big, small, require_subset=False)] == ["B", "H", "W"]


def test_check_shape_resolves_names():
    assert hax.check_shape((2, 3), ("a", Axis("b", 3))) == (Axis("a", 2), Axis("b", 3))
    with pytest.raises(AxisSpecError):
        hax.check_shape((2, 3), ("a",))
    with pytest.raises(AxisSizeMismatchError):
        hax.check_shape((2, 3), ("a", Axis("b", 4)))


def test_values_follow_names():
    x = hax.arange({"H": 3})
    wide = x.broadcast_to((Axis("B", 2), "H"))
    assert (wide.array == jnp.broadcast_to(jnp.arange(3), (2, 3))).all()
