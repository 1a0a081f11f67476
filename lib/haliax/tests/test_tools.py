"""Typing, tree functions, JAX helpers, debugging."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray, checked
from haliax import jax_utils as ju
from haliax import tree_util as tu
from haliax._src.util import IdentityMap, index_where
from haliax.errors import ArrayTypeError, AxisSizeMismatchError, AxisSpecError, ModuleProblems
from haliax.haxtyping import Float, Int, Named, f32, i32
from haliax.util import StringHolderEnum, ensure_tuple, is_named_array, maybe_untuple, safe_wraps
from jax.ad_checkpoint import print_saved_residuals  # noqa: F401


def test_annotations_carry_dtype_and_names():
    x = hax.ones({"a": 2, "b": 3})
    assert x.matches_axes(f32["a b"])
    assert x.matches_axes(f32[NamedArray, "a ..."])
    assert x.matches_axes(Float["a b"])
    assert not x.matches_axes(i32["a b"])
    assert not x.matches_axes(Int["a b"])
    assert x.astype(jnp.int32).matches_axes(Int["a b"])
    assert x.astype(jnp.bfloat16).matches_axes(Float["a b"])
    assert Named[NamedArray, "a b"] is not None
    assert isinstance(jnp.ones((2, 3)), f32[jax.Array, "a b"])
    assert not isinstance(jnp.ones((2, 3), int), Float[jax.Array, "a b"])


Queries, Keys, Scores = Float["?batch pos d"], Float["?batch kpos d"], Named["?batch pos kpos"]


@checked
def attend(q: Queries, k: Keys, scale: float = 1.0) -> Scores:
    return hax.dot(q, k, axis="d") * scale


def test_checked_binds_generic_names_and_sizes_across_arguments():
    q, k = hax.ones({"b": 2, "pos": 3, "d": 4}), hax.ones({"b": 2, "kpos": 5, "d": 4})
    assert attend(q, k, 2.0).shape == {"b": 2, "pos": 3, "kpos": 5}
    assert jax.jit(attend)(q, k).shape == {"b": 2, "pos": 3, "kpos": 5}
    with pytest.raises(AxisSpecError, match="argument 'k'.*.batch is 'b'"):
        attend(q, k.rename({"b": "c"}))
    with pytest.raises(AxisSizeMismatchError):
        attend(q, hax.ones({"b": 2, "kpos": 5, "d": 9}))
    with pytest.raises(ArrayTypeError, match="dtype int32"):
        attend(q.astype(int), k)
    with pytest.raises(ArrayTypeError, match="expected NamedArray"):
        attend(q.array, k)


def test_tree_functions_treat_named_arrays_as_leaves():
    tree = {"a": hax.ones({"x": 2}), "b": [jnp.ones(3), None]}
    assert len(tu.tree_leaves(tree)) == 2
    assert is_named_array(tu.tree_leaves(tree, is_leaf=lambda v: isinstance(v, list))[0])
    assert tu.tree_map(lambda v: v.ndim, tree)["a"] == 1
    leaves, treedef = tu.tree_flatten(tree)
    assert tu.tree_structure(tree) == treedef
    assert hax.tree.unflatten(treedef, leaves)["a"].names == ("x",)
    assert hax.tree.map is tu.tree_map


def test_resize_axis_pads_and_cuts(key):
    tree = {"w": hax.arange({"v": 4, "e": 2}, dtype=float), "other": hax.ones({"e": 2})}
    grown = tu.resize_axis(tree, "v", 6)
    assert grown["w"].shape == {"v": 6, "e": 2}
    np.testing.assert_allclose(grown["w"]["v", 5].array, tree["w"].mean("v").array)
    assert grown["other"].shape == {"e": 2}
    assert hax.resize_axis(tree, Axis("v", 4), 2)["w"].tolist() == [[0, 1], [2, 3]]
    noisy = tu.resize_axis(tree, "v", 600, key)["w"]["v", 4:]
    assert abs(float(noisy.mean().item()) - 3.5) < 0.5
    with pytest.raises(AxisSpecError):
        tu.resize_axis(tree, "v", -1)


def test_hashable_partition_round_trips():
    tree = {"a": jnp.ones(2), "b": "text"}
    dynamic, static = tu.hashable_partition(tree, eqx.is_array)
    hash(static)
    assert tu.hashable_combine(dynamic, static)["b"] == "text"


def test_jax_helpers(key):
    assert ju.maybe_rng_split(None, 2) == [None, None]
    assert ju.maybe_rng_split(key, 1).shape == (1,)
    assert ju.maybe_rng_split(key, 3).shape == (3,)
    assert ju.shaped_rng_split(key, (2, 3)).shape == (2, 3)
    assert ju.shaped_rng_split(key, (Axis("a", 2),)).shape == (2,)
    assert not ju.is_in_jit()
    seen = []
    jax.jit(lambda: seen.append(ju.is_in_jit()))()
    assert seen == [True]
    assert ju.is_scalarish(3)
    assert ju.is_scalarish(hax.named(1, ()))
    assert not ju.is_scalarish(jnp.ones(2))
    assert ju.ensure_scalar(hax.named(1, ())).shape == ()
    with pytest.raises(TypeError, match="steps"):
        ju.ensure_scalar(hax.ones({"a": 2}), name="steps")
    with pytest.raises(TypeError):
        ju.ensure_scalar(jnp.ones(2))
    assert ju.broadcast_prefix({"a": 1}, {"a": [0, 0]}) == {"a": [1, 1]}
    assert ju.broadcast_one_to_all(3) == 3
    ju.sync_global_devices("x")
    ju.assert_equal({"a": 1})

    class Layer:
        @hax.named_call
        def __call__(self, x):
            return x + 1

    text = jax.jit(lambda x: Layer()(x)).lower(1.0).as_text(debug_info=True)
    assert "Layer" in text


def test_small_helpers():
    assert ensure_tuple("ab") == ("ab",)
    assert ensure_tuple([1]) == (1,)
    assert maybe_untuple((1,)) == 1
    assert index_where(lambda v: v > 1, [0, 2, 3]) == 1
    with pytest.raises(ValueError, match="no element"):
        index_where(lambda v: v > 9, [0])
    k = []
    m = IdentityMap([(k, 1)])
    assert k in m
    assert [] not in m
    assert m[k] == 1
    assert list(m) == [k]
    assert hax.partitioning.ResourceAxis.DATA == "data"
    with pytest.raises(TypeError):
        StringHolderEnum()

    @safe_wraps(jnp.add)
    def f():
        return 1

    assert f() == 1


def test_module_problems_are_found():
    class Bad(eqx.Module):
        a: hnn.Linear
        b: hnn.Linear

    layer = hnn.Linear.init(Axis("i", 2), Axis("o", 2), key=jax.random.key(0))
    with pytest.raises(ModuleProblems, match=r"\.a\.weight, \.b\.weight"):
        hax.debug.diagnose_common_issues(Bad(layer, layer))
    hax.debug.diagnose_common_issues(layer)
