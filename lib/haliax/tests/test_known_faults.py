"""Faults that named-tensor libraries are known for: silently wrong numbers first, then crashes, one test each."""

import threading

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import ArrayTypeError, AxisCollisionError, AxisError, AxisNotFoundError, AxisSpecError

A, B = hax.make_axes(a=2, b=3)
X = hax.arange((A, B)) * 1.0


# --- silently wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "positional",
    [
        lambda: jax.vmap(lambda r: r.sum("a"))(X),
        lambda: jax.vmap(lambda r: r.sum())(X),
        lambda: jax.vmap(lambda r: r["a", 0])(X),
        lambda: jax.vmap(lambda r: r.take("a", 0))(X),
        lambda: jax.vmap(lambda r: hax.dot(r, X, axis="b"))(X),
        lambda: jax.vmap(lambda r: hax.einsum("{b} ->", r, X))(X),
        lambda: jax.vmap(lambda r: r + hax.ones(B))(X),
        lambda: jax.vmap(lambda r: r.rearrange(("b", "a")))(X),
        lambda: jax.vmap(lambda r: hax.rearrange(r, "x y -> y x"))(X),
        lambda: jax.vmap(lambda r: hnn.softmax(r, "a"))(X),
        lambda: jax.vmap(lambda r: hax.argmax(r, "a"))(X),
        lambda: jax.vmap(lambda r: r.broadcast_axis(Axis("c", 2)))(X),
        lambda: jax.lax.scan(lambda c, r: (c + r, None), hax.zeros(B), X),
        lambda: jax.lax.map(lambda r: r.mean("a"), X),
    ],
)
def test_a_rank_that_changed_behind_the_names_is_noticed(positional):
    with pytest.raises(AxisSpecError, match=r"use\s+hax\.vmap"):
        positional()


def test_elementwise_work_under_positional_transformations_is_right():
    np.testing.assert_array_equal(jax.vmap(lambda r: hax.square(r + r) * 2)(X).array, np.square(X.array * 2) * 2)


def test_numpy_on_the_left_builds_no_object_array():
    with pytest.raises(AxisError):
        np.ones((2, 3)) + X
    assert (np.float32(2) * X).names == ("a", "b")
    with pytest.raises(TypeError):
        jnp.sum(X)


def test_an_axis_that_only_one_operand_has_is_no_contraction():
    layer = hnn.Linear.init(B, Axis("out", 2), key=jax.random.key(0))
    with pytest.raises(AxisNotFoundError, match="Linear"):
        layer(hax.ones(A))
    with pytest.raises(AxisSpecError, match="one operand only"):
        hax.dot(X, hax.ones(A), axis="b", strict=True)
    assert hax.dot(X, hax.ones(A), axis="b").names == ("a",)  # the lenient form stays, when asked for


def test_every_axis_of_a_selection_counts():
    assert not X.has_axis(("a", "zz"))
    assert not X.has_axis(Axis("a", 9))
    for call in (lambda: X.rename({"zz": "y"}), lambda: hax.pad(X, {"zz": (0, 1)})):
        with pytest.raises(AxisNotFoundError):
            call()
    for call in (
        lambda: X.split("b", [Axis("p", 1), Axis("q", 1)]),
        lambda: X.rearrange((Axis("b", 9), "a")),
    ):
        with pytest.raises(AxisError):
            call()


def test_the_order_of_advanced_indices_does_not_depend_on_sizes():
    x = hax.zeros({"h": 10, "w": 20, "d": 30})
    names = [x["h", hax.ds(0, n), "d", hax.ds(0, m)].names for n, m in ((5, 7), (7, 5), (5, 5))]
    assert names == [("h", "d", "w")] * 3


def test_the_mapping_is_part_of_the_key_of_plain_jit():
    seen = []

    @jax.jit
    def f(x):
        seen.append(dict(hax.partitioning.current_thread_local_mapping() or {}))
        return x + 1

    for mapping in ({"a": "data"}, {"a": "model"}, {"a": "data"}):
        with hax.axis_mapping(mapping):
            f(X)
    assert seen == [{"a": "data"}, {"a": "model"}]


def test_switching_checks_off_in_one_thread_leaves_the_others_alone():
    found = []
    with hax.enable_shape_checks(False):
        thread = threading.Thread(target=lambda: found.append(hax.are_shape_checks_enabled()))
        thread.start()
        thread.join()
        assert not hax.are_shape_checks_enabled()
    assert found == [True]


def test_named_jit_follows_a_new_rank_of_a_raw_argument():
    f = hax.named_jit(lambda x: {"y": x * 2} if x.ndim == 1 else (x,))
    assert f(jnp.ones(2))["y"].shape == (2,)
    assert f(jnp.ones((2, 2)))[0].shape == (2, 2)


# --- crashing ---------------------------------------------------------------------------------------------------------


def test_functions_with_two_results_give_pairs_and_ndim_a_number():
    for pair in (divmod(X, 2.0), hax.frexp(X), hax.modf(X)):
        assert [type(part) for part in pair] == [hax.NamedArray] * 2
    assert hax.ndim(X) == 2


def test_masked_extremes_need_no_initial():
    mask = hax.named([False, True, False], "b")
    assert hax.max(X, "b", where=mask).tolist() == [1.0, 4.0]
    assert hax.min(X.astype(jnp.int32), "b", where=mask).tolist() == [1, 4]
    assert hax.ptp(X, "b").tolist() == [2.0, 2.0]
    assert hax.sum(X, where=True).item() == 15


def test_small_things_that_used_to_fail_work():
    assert hnn.glu(hax.ones({"e": 4}), "e").shape == {"e": 2}
    assert hax.isclose(X, 1.0).names == ("a", "b")
    assert (X == None) is False  # noqa: E711
    assert f"{X.sum():.1f}" == "15.0"
    assert hax.named(np.zeros((2, 3)), "a b").axes == (A, B)
    assert hax.vmap(lambda x, n: x.sum() + n, A, default=None)(X, 1.0).names == ("a",)
    assert hax.vmap(lambda x, n: n, A, args=(None, 0))(X, jnp.ones(2)).shape == (2,)
    assert len(hax.tree_util.tree_leaves([X, (1, 2)], is_leaf=lambda t: isinstance(t, tuple))) == 2


def test_more_than_ten_axes_can_be_contracted():
    x = hax.ones({f"x{i}": 1 for i in range(13)})
    assert hax.dot(x, x, axis="x3").ndim == 12


def test_annotations_of_raw_arrays_name_the_right_dtype():
    from haliax.haxtyping import Int, i32

    array = jnp.ones((2, 3), jnp.int32)
    for kind in (i32, Int):
        assert isinstance(array, kind[jax.Array, "a b"])
        assert not isinstance(array.astype(jnp.float32), kind[jax.Array, "a b"])


def test_a_result_that_has_the_scanned_axis_already_is_explained():
    with pytest.raises(AxisCollisionError, match="scan: a result already has the axis"):
        hax.scan(lambda c, x: (c, hax.ones(A)), A)(0.0, X)
    with pytest.raises(AxisError, match="'time'"):
        hax.vmap(lambda x: x, "time")(X)


def test_a_carry_in_another_order_is_put_right_and_other_axes_are_named():
    out = hax.fold(lambda c, x: (c + x).rearrange(("b", "a")), "t")(X, hax.ones({"t": 2, "a": 2, "b": 3}))
    assert out.axes == X.axes
    with pytest.raises(ValueError, match="expected the same axes"):
        hax.fold(lambda c, x: c.sum("b"), "t")(X, hax.ones({"t": 2}))


def test_block_seq_slices_arguments_in_every_variant():
    Layer, E = hax.make_axes(layer=2, e=3)
    keys = jax.random.split(jax.random.key(0), 2)
    args = hax.arange((Layer, E)) * 1.0
    outs = []
    for kind in (hnn.Stacked, hnn.BlockSeq):
        stack = kind.init(Layer, hnn.Linear)(E, E.alias("e2"), key=keys)
        body = lambda layer, c, extra: layer(c).rename({"e2": "e"}) + extra  # noqa: E731
        outs.append(stack.fold_via(body)(hax.ones(E), args))
    np.testing.assert_allclose(outs[0].array, outs[1].array, rtol=1e-5)


def test_views_of_references_take_traced_starts():
    ref = hax.new_ref(hax.zeros(Axis("p", 4)))

    @jax.jit
    def write(i):
        ref.slice({"p": hax.ds(i, 2)})[...] = 1.0

    write(1)
    assert ref.value().tolist() == [0, 1, 1, 0]


def test_what_is_printed_for_a_module_is_short():
    text = eqx.tree_pformat(hnn.Linear.init(B, Axis("out", 2), key=jax.random.key(0)))
    assert "weight=Named(float32{out: 2, b: 3})" in text


def test_two_mappings_in_a_row_are_start_and_length():
    x = hax.arange({"p": 6, "q": 2})
    for window in (hax.slice(x, {"p": 1}, {"p": 2}), hax.slice(x, {"p": 1}, length={"p": 2})):
        assert window.axes == (Axis("p", 2), Axis("q", 2))
    with pytest.raises(AxisSpecError, match="one mapping of lengths"):
        hax.slice(x, {"p": 1})
    with pytest.raises(ArrayTypeError):
        hax.slice(x.array, "p", start=0, length=1)
