"""The NamedArray itself: construction, queries, pytree behaviour, and what it refuses to do."""

import copy
import pickle

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray
from haliax.errors import ArrayTypeError, AxisCollisionError, AxisSizeMismatchError, AxisSpecError


def test_axes_may_be_given_in_any_form():
    x = jnp.zeros((2, 3))
    for axes in ((Axis("a", 2), Axis("b", 3)), ("a", "b"), "a b", {"a": 2, "b": 3}, [Axis("a", 2), "b"]):
        assert NamedArray(x, axes).shape == {"a": 2, "b": 3}
    assert hax.named([1, 2], "a").axes == (Axis("a", 2),)


@pytest.mark.parametrize(
    ("axes", "error"),
    [
        (("a", "a"), AxisCollisionError),
        (("a",), AxisSpecError),
        ((Axis("a", 2), Axis("b", 4)), AxisSizeMismatchError),
    ],
)
def test_axes_that_do_not_fit_are_refused(axes, error):
    with pytest.raises(error):
        NamedArray(jnp.zeros((2, 3)), axes)


def test_checks_can_be_switched_off_for_a_block():
    with hax.enable_shape_checks(False) as before:
        assert before
        NamedArray(jnp.zeros((2, 3)), ("a",))
    with pytest.raises(AxisSpecError):
        NamedArray(jnp.zeros((2, 3)), ("a",))


def test_the_pytree_holds_names_and_no_sizes():
    small, large = hax.zeros({"a": 2}), hax.zeros({"a": 200})
    assert jax.tree.structure(small) == jax.tree.structure(large)
    assert "200" not in str(jax.tree.structure(large))


@pytest.mark.parametrize("payload", [None, object(), jax.ShapeDtypeStruct((2,), jnp.float32), "sentinel"])
def test_any_payload_survives_flattening(payload):
    x = hax.zeros({"a": 2})
    y = jax.tree.unflatten(jax.tree.structure(x), [payload])
    assert y.array is payload
    assert y.names == ("a",)
    repr(y)


def test_filtered_modules_and_tracers_pass_through():
    x = hax.ones({"a": 2})
    dynamic, static = eqx.partition(x, eqx.is_array)
    assert static.array is None
    assert eqx.combine(dynamic, static).axes == x.axes
    assert eqx.filter(x, lambda _: False).array is None
    assert jax.eval_shape(lambda y: y + 1, x).axes == x.axes


def test_gradients_are_named_like_the_primal():
    x = hax.arange({"a": 3}, dtype=float)
    g = jax.grad(lambda y: (y * y).sum().scalar())(x)
    assert isinstance(g, NamedArray)
    assert g.tolist() == [0.0, 2.0, 4.0]


def test_copies_and_pickles_are_equal():
    x = hax.arange({"a": 3})
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.names == x.names
        assert y.tolist() == x.tolist()


def test_instances_are_immutable_and_unhashable():
    x = hax.ones({"a": 2})
    with pytest.raises(AttributeError, match="immutable"):
        x.array = 3
    with pytest.raises(TypeError):
        hash(x)


def test_has_axis_means_all_of_them():
    x = hax.ones({"a": 2, "b": 3})
    assert x.has_axis("a")
    assert x.has_axis(("a", "b"))
    assert not x.has_axis(("a", "zz"))
    assert not x.has_axis(Axis("a", 9))


def test_axis_indices_and_sizes():
    x = hax.ones({"a": 2, "b": 3})
    assert x.axis_indices("b") == 1
    assert x.axis_indices(("b", "zz")) == (1, None)
    with pytest.raises(RuntimeError):
        x.axis_indices(Axis("b", 9))
    with pytest.raises(ValueError, match="axis"):
        x.axis_indices(Axis("b", 9))
    assert x.axis_size("b") == 3
    assert x.axis_size(("b", "a")) == (3, 2)
    assert x.resolve_axis("b") == Axis("b", 3)
    assert x.resolve_axis(("a",)) == (Axis("a", 2),)


def test_numpy_never_swallows_a_named_array():
    x = hax.ones({"a": 2})
    with pytest.raises(AxisSpecError, match="raw array"):
        np.ones(2) + x
    with pytest.raises(ArrayTypeError, match=r"\.array"):
        np.asarray(x)
    with pytest.raises((ArrayTypeError, TypeError)):
        jnp.sum(x)
    assert (np.float32(2.0) * x).tolist() == [2.0, 2.0]


def test_sequence_protocol_is_refused_with_advice():
    x = hax.ones({"a": 2})
    with pytest.raises(ArrayTypeError, match="axis_size"):
        len(x)
    with pytest.raises(ArrayTypeError, match="unbind"):
        list(x)
    with pytest.raises(ValueError, match=r"hax\.dot"):
        x @ x


def test_comparison_with_none_is_false():
    x = hax.ones({"a": 2})
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    hole = NamedArray(None, ("a",))
    assert (hole == NamedArray(None, ("a",))) is True
    assert (hole == x) is False


def test_scalar_conversions():
    x = hax.named(jnp.float32(2.5), ())
    assert float(x) == 2.5
    assert int(x) == 2
    assert bool(x)
    assert x.item() == 2.5
    assert f"{x:.1f}" == "2.5"
    assert x.scalar().shape == ()
    with pytest.raises(ValueError, match="Reduce"):
        hax.ones({"a": 2}).scalar()


def test_repr_shows_axes_and_str_shows_data():
    x = hax.ones({"a": 2})
    assert repr(x) == "NamedArray(float32{a: 2})"
    assert "1." in str(x)
    jax.jit(lambda y: (repr(y).startswith("NamedArray(Tracer<float32{a: 2}>)") or pytest.fail(repr(y))) and y)(x)


def test_positional_vmap_is_explained():
    with pytest.raises(AxisSpecError, match=r"hax\.vmap"):
        jax.vmap(lambda y: y.axes[0].size)(hax.ones({"a": 2, "b": 3}))


def test_typing_specs_match_names():
    x = hax.ones({"a": 2, "b": 3, "c": 4})
    assert x.matches_axes(NamedArray["a b c"])
    assert x.matches_axes(NamedArray["a ... c"])
    assert x.matches_axes(NamedArray["a", ...])
    assert x.matches_axes(NamedArray[{"c", "a", ...}])
    assert x.matches_axes(NamedArray[{"c", "a", "b"}])
    assert not x.matches_axes(NamedArray[{"c", "a"}])
    assert not x.matches_axes(NamedArray["b ..."])
    assert not x.matches_axes("a b")
    with pytest.raises(TypeError):
        NamedArray["... a ..."]
