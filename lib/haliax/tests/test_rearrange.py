"""rearrange, its grammar, and the einops-like reduce, repeat, pack."""

import haliax as hax
import numpy as np
import pytest
from haliax import Axis
from haliax._ops.parsing import parse_einsum, parse_rearrangement
from haliax.errors import AxisSizeMismatchError, AxisSpecError, ExpressionError
from hypothesis import given, settings
from hypothesis import strategies as st

B, H, W, C, D = hax.make_axes(B=2, H=4, W=6, C=3, D=5)


@pytest.fixture
def x():
    return hax.arange((B, D, H, W, C))


def raw(a):
    return np.asarray(a.array)


def test_sequences_transpose(x):
    assert hax.rearrange(x, ("C", "W", "H", "D", "B")).names == ("C", "W", "H", "D", "B")
    assert hax.rearrange(x, (...,)) is x or hax.rearrange(x, (...,)).names == x.names
    assert hax.rearrange(x, ("C", ..., "B")).names == ("C", "D", "H", "W", "B")
    with pytest.raises(AxisSpecError):
        hax.rearrange(x, ())
    with pytest.raises(AxisSizeMismatchError):
        hax.rearrange(x, (Axis("C", 9), ...))


@pytest.mark.parametrize(
    ("text", "bindings", "names", "reference"),
    [
        ("b d h w c -> c w h d b", {}, "C W H D B", lambda a: a.transpose(4, 3, 2, 1, 0)),
        ("b ... c -> c ... b", {}, "C D H W B", lambda a: a.transpose(4, 1, 2, 3, 0)),
        ("b d h w c -> b (F: d h w c)", {}, "B F", lambda a: a.reshape(2, -1)),
        (
            "b d (p: h1 h2) w c -> b d h2 h1 w c",
            {"h1": 2},
            "B D h2 h1 W C",
            lambda a: a.reshape(2, 5, 2, 2, 6, 3).swapaxes(2, 3),
        ),
        ("{B H W} -> ... (Q: B H) ... W", {}, None, None),
        ("b d h w c -> d ... (Q: b h) ... w", {}, None, None),
        ("{B ...} -> ... B", {}, "D H W C B", lambda a: np.moveaxis(a, 0, 4)),
        (
            "{(H: a b)} -> ... a b",
            {"a": 2},
            "B D W C a b",
            lambda a: np.moveaxis(a.reshape(2, 5, 2, 2, 6, 3), (2, 3), (4, 5)),
        ),
        ('b d h w c -> "C" ... ', {}, None, "error"),
        (
            "b d (h1 h2) ... -> b d h1 h2 ...",
            {"h1": Axis("top", 2), "h2": "low"},
            "B D top low W C",
            lambda a: a.reshape(2, 5, 2, 2, 6, 3),
        ),
    ],
)
def test_strings(x, text, bindings, names, reference):
    if reference == "error":
        with pytest.raises(ExpressionError):
            hax.rearrange(x, text, **bindings)
        return
    if names is None:
        x = x["D", 0] if text.startswith("{B") else x
        out = hax.rearrange(x, text if text.startswith("{") else "b d h w c -> d ... (Q: b h) ... w")
        expected = {"{": ("Q", "C", "W"), "b": ("D", "C", "Q", "W")}[text[0]]
        assert set(out.names) == set(expected)
        assert out.axis_size("Q") == 8
        return
    out = hax.rearrange(x, text, **bindings)
    assert out.names == tuple(names.split())
    assert np.array_equal(raw(out), reference(raw(x)))


def test_several_ellipses_with_groups_are_pinned():
    a = hax.arange((B, D, H, W, C))
    assert hax.rearrange(a, "b d h w c -> d ... (Q: b h) ... w").names == ("D", "Q", "C", "W")
    b = hax.arange((B, D, H, W))
    assert hax.rearrange(b, "{B H W} -> ... (Q: B H) ... W").names == ("Q", "D", "W")


@pytest.mark.parametrize(
    ("text", "bindings", "message"),
    [
        ("a b c d e f -> a", {}, "Too many axes in lhs"),
        ("a b -> a b", {}, "Not all axes are bound"),
        ("a ... -> z ...", {}, "is not bound on the lhs"),
        ("a ... b ... -> a", {}, "Only one ellipsis allowed"),
        ("a a ... -> a ...", {}, "is assigned more than once"),
        ("a ... -> a a ...", {}, "is used more than once"),
        ("a b ... -> a", {}, "Not all intermediate axes are used"),
        ("{(B: x y) (B: z w)} -> x y z w ...", {"x": 1, "z": 1}, "is bound more than once"),
        ("(x y) ... -> x y ...", {"x": 3}, "not divide"),
        ("a b ... -> (a b) ...", {}, "must have a name"),
        ("(x y) ... -> x y ...", {}, "are ambiguous"),
        ("{(x y)} -> x y ...", {"x": 1}, "must be bound by name"),
        ("{Z} -> Z ...", {}, "Could not resolve"),
        ("a (b", {}, "Unexpected end of string"),
        ("{a b -> a", {}, "Expected }"),
        ("a } -> a", {}, "Unexpected }"),
        ("a + b -> a", {}, "Unexpected character"),
        ("(1: a) -> a", {}, "Unexpected character"),
        ("a (b (c)) -> a", {}, "Identifier expected"),
    ],
)
def test_mistakes_are_named(x, text, bindings, message):
    with pytest.raises(ExpressionError, match=message):
        hax.rearrange(x, text, **bindings)


def test_bound_sizes_are_checked(x):
    with pytest.raises(ExpressionError, match="size 2"):
        hax.rearrange(x, "b ... -> ... b", b=7)


def test_expressions_parse_to_captures():
    lhs, rhs = parse_rearrangement("{a (g: b c)} -> {c a}")
    assert not lhs.is_ordered
    assert [c.binding for c in lhs.captures] == ["a", "g"]
    assert lhs.captures[1].axes == ("b", "c")
    assert [c.binding for c in rhs.captures] == ["c", "a"]
    terms, out = parse_einsum('"long name" b, b -> b')
    assert terms[0].captures[0].binding == "long name"
    assert out.is_ordered


@settings(deadline=None)
@given(st.permutations("BDHWC"))
def test_any_permutation_equals_numpy(order):
    a = hax.arange((B, D, H, W, C))
    out = hax.rearrange(a, tuple(order))
    assert np.array_equal(raw(out), raw(a).transpose(["BDHWC".index(n) for n in order]))


def test_reduce_drops_names_and_merges():
    a = hax.arange({"b": 2, "t": 6}, dtype=float)
    r = np.arange(12.0).reshape(2, 6)
    assert np.array_equal(raw(hax.reduce(a, "b (t p) -> b t", "max", p=3)), r.reshape(2, 2, 3).max(-1))
    assert np.array_equal(raw(hax.reduce(a, "b t -> t", "sum")), r.sum(0))
    assert np.array_equal(raw(hax.reduce(a, "{t} -> ...", "mean")), r.mean(1))
    merged = hax.reduce(a, "b (t p) -> (z: b t)", "sum", p=3)
    assert merged.names == ("z",)
    assert np.array_equal(raw(merged), r.reshape(4, 3).sum(-1))
    assert hax.reduce(a, "b ... -> ...", lambda v, axis: v.min(axis)).names == ("t",)
    with pytest.raises(AxisSpecError, match="expected one of"):
        hax.reduce(a, "b t -> b", "median of means")
    with pytest.raises(ExpressionError):
        hax.reduce(a, "b t -> z", "sum")


def test_repeat_adds_names():
    a = hax.arange({"b": 2, "d": 3})
    r = np.arange(6).reshape(2, 3)
    assert np.array_equal(raw(hax.repeat(a, "b d -> b r d", r=4)), np.repeat(r[:, None], 4, 1))
    assert np.array_equal(raw(hax.repeat(a, "b d -> b (w: d r)", r=2)), np.repeat(r, 2, 1))
    assert hax.repeat(a, "{d} -> ... d r", r=Axis("copies", 2)).names == ("b", "d", "copies")
    with pytest.raises(ExpressionError, match="no size"):
        hax.repeat(a, "b d -> b r d")


def test_pack_and_unpack_are_inverse():
    a, b, c = hax.arange({"k": 2, "x": 3, "y": 4}), hax.ones({"z": 5, "k": 2}, int), hax.zeros({"k": 2}, int)
    packed, layout = hax.pack("flat", [a, b, c], keep="k")
    assert packed.shape == {"k": 2, "flat": 18}
    for before, after in zip([a, b, c], hax.unpack(packed, layout), strict=True):
        assert hax.array_equal(before, after)
        assert before.names == after.names
    assert hax.parse_shape(a, "k _ y") == {"k": 2, "y": 4}
