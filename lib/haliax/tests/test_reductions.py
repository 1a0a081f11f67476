"""Reductions by name, with masks, and running reductions."""

import haliax as hax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import ArrayTypeError, AxisNotFoundError, AxisSizeMismatchError, AxisSpecError

REDUCTIONS = """amax amin max mean median min nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar prod product
ptp std sum var count_nonzero""".split()
MASKED = "amax amin max mean min nanmax nanmean nanmin nanprod nanstd nansum nanvar prod ptp std sum var".split()


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_equal_jnp_for_every_form_of_axis(name, array):
    fn, ref = getattr(hax, name), getattr(jnp, {"product": "prod"}.get(name, name))
    array = array / 100
    raw = array.array
    assert fn(array).names == ()
    close(fn(array).array, ref(raw))
    for axis, positions, names in (
        ("H", 1, ("B", "W", "D")),
        (Axis("W", 4), 2, ("B", "H", "D")),
        (("D", "B"), (3, 0), ("H", "W")),
        ({"H": None}, 1, ("B", "W", "D")),
    ):
        out = fn(array, axis)
        close(out.array, ref(raw, axis=positions))
        assert out.names == names


@pytest.mark.parametrize("name", MASKED)
def test_masks_broadcast_by_name(name, array):
    fn, ref = getattr(hax, name), getattr(np, name)
    array = array / 100 - 0.3
    mask = hax.arange({"W": 4}) != 2
    kept = np.asarray(array.array)[:, :, [0, 1, 3], :]
    close(fn(array, "W", where=mask).array, ref(kept, axis=2))
    close(fn(array, where=mask).array, ref(kept))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float32, jnp.uint8, jnp.bfloat16])
def test_masked_max_and_min_need_no_initial(dtype):
    x = hax.arange({"a": 4}).astype(dtype)
    assert hax.max(x, where=x < 2).item() == 1
    assert hax.min(x, where=x > 1).item() == 2
    assert hax.max(x, where=x < 2, initial=3).item() == 3


def test_where_accepts_a_plain_bool_and_refuses_other_things(array):
    close(hax.sum(array, where=True).array, array.array.sum())
    with pytest.raises(ArrayTypeError, match="where"):
        hax.sum(array, where=jnp.ones((2, 3, 4, 5), bool))
    with pytest.raises(AxisSpecError, match="lacks"):
        hax.sum(hax.ones({"a": 2}), where=hax.ones({"a": 2, "b": 3}, bool))


def test_all_and_any(array):
    assert hax.all(array >= 0).item()
    assert hax.any(array > 118, ("B", "H", "W")).tolist() == [False] * 4 + [True]


def test_bad_axes_and_arguments_are_refused(array):
    with pytest.raises(AxisNotFoundError):
        hax.sum(array, "zz")
    with pytest.raises(AxisSizeMismatchError):
        hax.sum(array, Axis("H", 9))
    with pytest.raises(AxisSpecError):
        hax.sum(array, "H", keepdims=True)
    with pytest.raises(ArrayTypeError):
        hax.sum(jnp.ones(3), "a")


def test_pytrees_are_reduced_leaf_by_leaf(array):
    out = hax.sum({"x": array, "y": (array, 3.0)})
    assert out["x"].names == ()
    assert out["y"][1] == 3.0


@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax", "nanargmin"])
def test_arg_reductions(name, array):
    fn, ref = getattr(hax, name), getattr(jnp, name)
    shuffled = hax.sin(array)
    close(fn(shuffled, "H").array, ref(shuffled.array, axis=1))
    close(fn(shuffled).array, ref(shuffled.array))
    assert fn(shuffled, "H").names == ("B", "W", "D")


def test_running_reductions_and_sorting(array):
    x = hax.sin(array)
    close(hax.cumsum(x, "H").array, jnp.cumsum(x.array, axis=1))
    close(x.cumprod("W").array, jnp.cumprod(x.array, axis=2))
    close(hax.nancumsum(x, "W").array, jnp.nancumsum(x.array, axis=2))
    close(hax.sort(x, "D").array, jnp.sort(x.array, axis=3))
    close(hax.argsort(x, "D", stable=True).array, jnp.argsort(x.array, axis=3, stable=True))
    assert not isinstance(hax.argsort(x, None), hax.NamedArray)


def test_quantiles_and_averages(array):
    close(hax.quantile(array, 0.3, "W").array, jnp.quantile(array.array, 0.3, axis=2))
    close(hax.percentile(array, 30, ("W", "D")).array, jnp.percentile(array.array, 30, axis=(2, 3)))
    weights = hax.arange({"W": 4}, dtype=float)
    close(hax.average(array, "W", weights=weights).array, np.average(array.array, axis=2, weights=np.arange(4)))


def test_methods_are_the_functions(array):
    close(array.sum("H").array, hax.sum(array, "H").array)
    close(array.std("H", ddof=1).array, jnp.std(array.array, axis=1, ddof=1))
    assert array.mean(dtype=jnp.bfloat16).dtype == jnp.bfloat16
    assert hax.sum(hax.ones({"a": 3}, jnp.int8)).dtype == jnp.int32
