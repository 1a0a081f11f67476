"""The axis algebra: every form of axes, order kept, sizes checked."""

import jax
import pytest
from haliax.axis import (
    Axis,
    axis_name,
    axis_size,
    axis_spec_to_shape_dict,
    axis_spec_to_tuple,
    concat_axes,
    dblock,
    dslice,
    eliminate_axes,
    intersect_axes,
    is_axis_compatible,
    make_axes,
    rearrange_for_partial_order,
    replace_axis,
    replace_missing_with_ellipsis,
    resolve_axis,
    selects_axis,
    to_jax_shape,
    union_axes,
    unsize_axes,
    without_axes,
)
from haliax.errors import AxisCollisionError, AxisNotFoundError, AxisSizeMismatchError, AxisSpecError
from hypothesis import given
from hypothesis import strategies as st

A, B, C = make_axes(a=1, b=2, c=3)

names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6)
specs = names.map(lambda ns: tuple(Axis(n, ord(n) - 96) for n in ns))


def test_forms_are_normalised_alike():
    for spec in (A, (A,), {"a": 1}, [A]):
        assert axis_spec_to_shape_dict(spec) == {"a": 1}
        assert axis_spec_to_tuple(spec) == (A,)
    assert axis_spec_to_tuple(("a", B)) == ("a", B)
    assert axis_spec_to_shape_dict("a") == {"a": None}
    assert axis_name((A, "b")) == ("a", "b")
    assert axis_size((A, B, C)) == 6
    assert to_jax_shape(B) == 2
    assert to_jax_shape((B, C)) == (2, 3)


def test_bad_entries_are_refused():
    with pytest.raises(AxisSpecError, match="int"):
        axis_spec_to_tuple((A, 3))
    with pytest.raises(AxisSpecError, match="size=-1"):
        Axis("x", -1)


@given(specs, specs)
def test_union_is_a_then_the_new_of_b(a, b):
    out = union_axes(a, b)
    assert out == a + tuple(x for x in b if x not in a)


@given(specs, specs)
def test_without_and_intersect_partition_a(a, b):
    assert set(without_axes(a, b)) | set(intersect_axes(a, b)) == set(a)
    assert not set(without_axes(a, b)) & set(b)


@given(specs)
def test_eliminating_everything_leaves_nothing(a):
    assert eliminate_axes(a, a) == ()


@given(specs, specs)
def test_concat_refuses_exactly_the_overlaps(a, b):
    if {x.name for x in a} & {x.name for x in b}:
        with pytest.raises(AxisCollisionError, match="specified twice"):
            concat_axes(a, b)
    else:
        assert concat_axes(a, b) == a + b


def test_mapping_in_mapping_out():
    assert concat_axes({"a": 1}, B) == {"a": 1, "b": 2}
    assert union_axes({"a": 1}, (B,)) == {"a": 1, "b": 2}
    assert without_axes({"a": 1, "b": 2}, "a") == {"b": 2}
    assert eliminate_axes({"a": 1, "b": 2}, "b") == {"a": 1}
    assert replace_axis({"a": 1, "b": 2}, "a", C) == {"c": 3, "b": 2}
    assert resolve_axis((A, B), {"b": None}) == {"b": 2}


def test_size_clashes_are_errors():
    wrong = Axis("a", 9)
    for call in (
        lambda: union_axes((A, B), wrong),
        lambda: without_axes((A, B), wrong),
        lambda: eliminate_axes((A, B), wrong),
        lambda: intersect_axes((A, B), (wrong,)),
        lambda: resolve_axis((A, B), wrong),
        lambda: replace_axis((A, B), wrong, C),
    ):
        with pytest.raises(AxisSizeMismatchError) as caught:
            call()
        assert isinstance(caught.value, ValueError | RuntimeError)
    assert without_axes((A, B), wrong, allow_mismatched_sizes=True) == (B,)


def test_absent_axes_are_errors_with_a_suggestion():
    with pytest.raises(AxisNotFoundError, match="Did you mean 'embed'"):
        resolve_axis((Axis("embed", 2),), "Embed")
    with pytest.raises(AxisNotFoundError):
        eliminate_axes((A,), "zz")
    with pytest.raises(AxisNotFoundError):
        replace_axis((A,), "zz", B)
    with pytest.raises(AxisNotFoundError):
        unsize_axes((A,), "zz")


def test_selecting_and_compatibility():
    assert selects_axis((A, B), "b")
    assert selects_axis((A, B), (A, B))
    assert not selects_axis((A,), (A, B))
    assert not selects_axis((A, B), Axis("b", 7))
    assert is_axis_compatible(A, Axis("a", 100))


def test_unsizing_and_replacing():
    assert unsize_axes((A, B)) == ("a", "b")
    assert unsize_axes((A, B), "a") == ("a", B)
    assert unsize_axes({"a": 1}) == {"a": None}
    assert unsize_axes(A) == "a"
    assert replace_axis((A, B), "a", (C, Axis("d", 4))) == (C, Axis("d", 4), B)
    with pytest.raises(AxisCollisionError):
        replace_axis((A, B), "a", B)
    assert replace_missing_with_ellipsis((A, B), "b") == (..., B)
    assert intersect_axes((A, B), "b") == ("b",)


@pytest.mark.parametrize(
    ("partial", "natural", "expected"),
    [
        (
            ("apple", ..., "banana", ..., "cherry", ...),
            "banana orange cherry apple grape",
            "apple banana orange cherry grape",
        ),
        (("C", ..., ...), "H W D C", "C H W D"),
        ((..., "C", ..., "W"), "H W D C", "H D C W"),
        ((..., "H", ..., "D"), "H W D C", "H W C D"),
        (("D", ..., "H", ...), "H W D", "D H W"),
        (("D", ..., "W", "H"), "H W D", "D W H"),
        ((...,), "H W D", "H W D"),
        (("W", "D", "H"), "H W D", "W D H"),
    ],
)
def test_partial_orders_that_are_pinned(partial, natural, expected):
    axes = [Axis(n, i + 1) for i, n in enumerate(natural.split())]
    assert [a.name for a in rearrange_for_partial_order(partial, axes)] == expected.split()


@given(names, st.data())
def test_a_partial_order_keeps_its_own_order_and_loses_nothing(ns, data):
    chosen = data.draw(st.lists(st.sampled_from(ns), unique=True)) if ns else []
    partial = []
    for n in chosen:
        partial += [..., n] if data.draw(st.booleans()) else [n]
    partial.append(...)
    out = [a.name for a in rearrange_for_partial_order(partial, [Axis(n, 1) for n in ns])]
    assert sorted(out) == sorted(ns)
    assert [n for n in out if n in chosen] == chosen


@pytest.mark.parametrize("partial", [("a",), ("a", "b", "zz"), ("a", "a", "b"), ("a", "zz", ...)])
def test_orders_that_do_not_fit_are_errors(partial):
    with pytest.raises(AxisSpecError):
        rearrange_for_partial_order(partial, (A, B))


def test_a_sized_entry_of_an_order_must_agree():
    with pytest.raises(AxisSizeMismatchError):
        rearrange_for_partial_order((Axis("b", 9), ...), (A, B))


def test_dslice_forms():
    assert dslice(2, 3).to_slice() == slice(2, 5)
    assert dslice(0, B).size == 2
    assert dblock(2, 4).start == 8
    with pytest.raises(AxisSpecError):
        dslice(0, -1)


def test_a_dslice_is_a_pytree_of_its_start():
    window = dslice(2, 3)
    assert window == dslice(2, 3) != dslice(2, 4)
    assert hash(window) == hash(dslice(2, 3))
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(window)
    assert (jax.tree_util.keystr(path), leaf) == (".start", 2)
    moved = jax.jit(lambda w: jax.tree.map(lambda s: s + 1, w))(window)
    assert (int(moved.start), moved.size) == (3, 3)
    with pytest.raises(AttributeError):
        window.start = 5
