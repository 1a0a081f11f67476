"""Contractions by name: dot and einsum against numpy, and what they refuse."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, ExpressionError

H, W, D = hax.make_axes(H=2, W=3, D=4)


def rand(*axes, seed=0):
    return hax.named(np.random.default_rng(seed).standard_normal([a.size for a in axes], dtype=np.float32), axes)


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours.array), theirs, rtol=1e-5, atol=1e-5)


def test_dot_orders_by_first_appearance_and_batches_shared_names():
    a, b = rand(H, W, D), rand(D, W, H, seed=1)
    close(hax.dot(a, b, axis=D), np.einsum("hwd,dwh->hw", a.array, b.array))
    assert hax.dot(a, b, axis="D").names == ("H", "W")
    assert hax.dot(a, b, axis=(H, D)).names == ("W",)
    close(hax.dot(a, b, axis=None), np.einsum("hwd,dwh->", a.array, b.array))
    close(hax.dot(a, b, axis=()), np.einsum("hwd,dwh->hwd", a.array, b.array))
    close(hax.dot(a, axis=W), np.asarray(a.array).sum(1))
    assert hax.dot(a, b, axis=D, out_axes=(W, ...)).names == ("W", "H")
    close(a.dot(b, axis=D), np.einsum("hwd,dwh->hw", a.array, b.array))


def test_three_operands_and_more_than_ten_axes():
    a, b, c = rand(H, W), rand(W, D, seed=1), rand(D, H, seed=2)
    close(hax.dot(a, b, c, axis=(W, D)), np.einsum("hw,wd,dh->h", a.array, b.array, c.array))
    many = [Axis(f"x{i}", 1 + i % 2) for i in range(12)]
    x, y = rand(*many), rand(*many[::-1], seed=1)
    out = hax.dot(x, y, axis=many[0])
    assert out.names == tuple(a.name for a in many[1:])
    np.testing.assert_allclose(np.asarray(out.array), (x * y).sum(many[0]).array, rtol=1e-5)


def test_strict_refuses_an_axis_that_only_one_operand_has():
    a, b = rand(H, W), rand(H, D)
    assert hax.dot(a, b, axis=W).names == ("H", "D")
    with pytest.raises(AxisSpecError, match="one operand only"):
        hax.dot(a, b, axis=W, strict=True)


def test_dot_refuses_what_does_not_fit():
    a, b = rand(H, W), rand(W, D)
    with pytest.raises(AxisNotFoundError):
        hax.dot(a, b, axis="zz")
    with pytest.raises(AxisSizeMismatchError):
        hax.dot(a, rand(Axis("W", 5), D), axis=W)
    with pytest.raises(AxisSizeMismatchError):
        hax.dot(a, b, axis=Axis("W", 9))
    with pytest.raises(AxisSpecError, match="no axis"):
        hax.dot(a, b)
    with pytest.raises(AxisSpecError, match="no arrays"):
        hax.dot(axis=W)
    with pytest.warns(DeprecationWarning):
        hax.dot("W", a, b)


def test_precision_dtypes_and_custom_dot_general():
    a, b = rand(H, W).astype(jnp.bfloat16), rand(W, D).astype(jnp.bfloat16)
    assert hax.dot(a, b, axis=W).dtype == jnp.bfloat16
    assert hax.dot(a, b, axis=W, preferred_element_type=jnp.float32).dtype == jnp.float32
    assert hax.dot(a, rand(W, D), axis=W).dtype == jnp.float32
    seen = []

    def spy(lhs, rhs, numbers, precision=None, preferred=None):
        seen.append(numbers)
        return jax.lax.dot_general(lhs, rhs, numbers, precision, preferred)

    assert hax.dot(a, b, axis=W, dot_general=spy).names == ("H", "D")
    assert seen == [(((1,), (0,)), ((), ()))]


@pytest.mark.parametrize(
    ("equation", "reference", "names"),
    [
        ("h w d, d w h -> h w", "hwd,dwh->hw", ("H", "W")),
        ("a b c, c b a -> c a", "hwd,dwh->dh", ("D", "H")),
        ("h ... d, d ... h -> ...", "hwd,dwh->w", ("W",)),
        ("... d, d ... -> d ...", None, None),
        ("{H D} -> H", "hwd,dwh->wh", ("W", "H")),
        ("{H D} -> ", "hwd,dwh->w", ("W",)),
        ("{H ... D} -> D", "hwd,dwh->d", ("D",)),
        ("{H D} -> D ...", "hwd,dwh->dhw", ("D", "H", "W")),
        ("{} -> ", "hwd,dwh->hwd", ("H", "W", "D")),
        ("-> D H", "hwd,dwh->dh", ("D", "H")),
        ("-> ... H", "hwd,dwh->wdh", ("W", "D", "H")),
        ("-> ", "hwd,dwh->", ()),
    ],
)
def test_einsum_modes(equation, reference, names):
    a, b = rand(H, W, D), rand(D, W, H, seed=1)
    if reference is None:
        b = rand(D, H, W, seed=1)
        reference, names = "hwd,dhw->dhw", ("D", "H", "W")
    out = hax.einsum(equation, a, b)
    assert out.names == names
    close(out, np.einsum(reference, a.array, b.array))


def test_einsum_names_after_an_ellipsis_keep_their_order():
    a, b = rand(H, W, D), rand(W, D, seed=1)
    close(hax.einsum("... y z, y z -> ...", a, b), np.einsum("hwd,wd->h", a.array, b.array))
    close(hax.einsum("... y z, y z -> y z ...", a, b), np.einsum("hwd,wd->wdh", a.array, b.array))


def test_einsum_aliases():
    a, b = rand(H, W, D), rand(D, W, H, seed=1)
    assert hax.einsum("{x y} -> x", a, b, x=H, y="D").names == ("W", "H")
    assert hax.einsum("-> z", a, b, z=W).names == ("W",)
    assert hax.einsum("h w d, d w h -> h w", a, b, h=H).names == ("H", "W")


@pytest.mark.parametrize(
    ("equation", "aliases", "message"),
    [
        ("h w d -> h", {}, "does not match number of arrays"),
        ("h w, d w h -> h", {}, "Mismatched number of axes"),
        ("h ... w ..., d w h -> h", {}, "ellipsis"),
        ("(h w) d, d w h -> h", {}, "unsupported"),
        ("h w d, d w h -> z", {}, "not on the lhs"),
        ("{H Z} -> H", {}, "not present"),
        ("{H} -> ", {"d": D}, "Axis alias d not used"),
        ("-> H H", {}, "multiple times"),
        ("-> H", {"Q": D}, "Unused aliases from kwargs: Q"),
        ("-> Z", {}, "not found in any of the input arrays"),
        ("-> h", {"h": Axis("H", 9)}, "Size mismatch"),
    ],
)
def test_einsum_errors(equation, aliases, message):
    with pytest.raises(ValueError, match=message):
        hax.einsum(equation, rand(H, W, D), rand(D, W, H), **aliases)


def test_einsum_size_clash_between_operands():
    with pytest.raises(ValueError, match="Size mismatch"):
        hax.einsum("-> H", rand(H, W), rand(Axis("W", 7)))


def test_einsum_parse_errors_point_at_the_place():
    with pytest.raises(ExpressionError) as caught:
        hax.einsum("h w$ d, d w h -> h", rand(H, W, D), rand(D, W, H))
    lines = str(caught.value).splitlines()
    assert lines[-1].index("^") == lines[-2].index("$")


def test_gradients_flow_through_contractions():
    a, b = rand(H, W), rand(W, D)
    g = jax.grad(lambda x: hax.dot(x, b, axis=W).sum().scalar())(a)
    close(g, np.broadcast_to(np.asarray(b.array).sum(1), (2, 3)))
