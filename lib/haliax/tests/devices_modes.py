"""Values and gradients of the whole surface under no mesh, an auto mesh and an explicit mesh, on 8 virtual CPU devices.

Run by test_partitioning.py in a process of its own.
"""

import functools
import re

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.partitioning import set_mesh
from jax.sharding import AxisType

B, P, E, M, V, K = hax.make_axes(batch=8, pos=4, embed=4, mlp=8, vocab=16, kpos=4)
MAPPING = {"batch": "data", "mlp": "model", "vocab": "model"}
KEY = jax.random.key(0)


def arr(*axes, seed=0):
    return hax.named(np.random.default_rng(seed).normal(size=[a.size for a in axes]).astype(np.float32), axes)


X, Y, W, T = arr(B, P, E), arr(B, P, E, seed=1), arr(E, M, seed=2), arr(V, E, seed=3)
H = arr(B, P, M, seed=4)
IDS = hax.named(np.arange(32).reshape(8, 4) % 16, (B, P))
STARTS = hax.named(np.arange(8) % 3, B)
LINEAR = hnn.Linear.init(E, M, key=KEY)
NORM, RMS = hnn.LayerNorm.init(M), hnn.RmsNorm.init(M)
MOE = hnn.MoELinear.init(Axis("experts", 2), E, M, key=KEY)
GROUPS = hax.named(np.array([3, 5], np.int32), "experts")
CONV = hnn.Conv.init(P, E, M, 3, padding=1, key=KEY)
STACK = hnn.Stacked.init(Axis("layer", 2), hnn.Linear, gradient_checkpointing=True)(
    M, M.alias("mlp2"), key=jax.random.split(KEY, 2)
)


def layers(stack, h):
    return stack.fold_via(lambda layer, c: hax.tanh(layer(c).rename({"mlp2": "mlp"})))(h)


# Every case differentiates by its first argument; all arguments are sharded by name first.
CASES = {
    "broadcast": (lambda w, x: x * w.sum("mlp"), W, X),
    "bias": (lambda b, h: h + b, arr(M), H),
    "reductions": (lambda h: h.mean("mlp") + h.max("pos").std("mlp") + h.var(("pos", "mlp")), H),
    "softmax": (lambda h: hnn.softmax(h, "mlp") + hnn.log_softmax(h, "pos"), H),
    "masked mean": (lambda h: hax.mean(h, "batch", where=hax.arange(B) > 2), H),
    "dot over a sharded axis": (lambda w, h: hax.dot(h, w, axis="mlp"), W, H),
    "dot": (lambda w, x: hax.dot(x, w, axis="embed"), W, X),
    "outer": (lambda x, y: hax.dot(x, y.rename({"pos": "kpos"}), axis="embed", out_axes=("kpos", ...)), X, Y),
    "einsum": (lambda w, x: hax.einsum("b p e, e m -> m b p", x, w), W, X),
    "rearrange": (lambda h: hax.rearrange(h, "b p (h d) -> b h (x: p d)", h=2), H),
    "reduce and repeat": (lambda x: hax.repeat(hax.reduce(x, "b p e -> b e", "max"), "b e -> b r e", r=3), X),
    "flatten": (lambda h: h.flatten_axes(("pos", "mlp"), "flat").unflatten_axis("flat", (P, M)), H),
    "index": (lambda h: h["pos", 1] + h["pos", 1:3].sum("pos") + h["pos", hax.ds(1, 2)].sum("pos"), H),
    "index by names": (lambda t, i: t["vocab", i], T, IDS),
    "batched gather": (lambda x, i: x["pos", i % 4], X, STARTS),
    "take": (lambda t, i: t.take("vocab", i), T, IDS),
    "write": (lambda h: h.at["pos", 1].set(0.0).at["pos", 2:].multiply(3.0), H),
    "scatter": (lambda x: hax.zeros((B, P, E)).at["pos", STARTS].add(x["pos", 0]), X),
    "scatter max": (lambda h: h.at["pos", STARTS].max(0.3), H),
    "slice": (lambda h: h.slice("pos", start=1, length=2), H),
    "updated slice": (lambda x: x.updated_slice({"pos": 1}, x.slice("pos", start=0, length=2) * 2), X),
    "ragged update": (lambda x: x.updated_slice({"pos": STARTS}, x.slice("pos", start=0, length=2)), X),
    "join and split": (lambda h: sum(hax.concatenate("pos", [h, h * 2]).split("pos", [P, P])), H),
    "stack and unbind": (lambda h: sum(hax.stack("new", [h, h * 2]).unbind("new")), H),
    "where": (lambda h: hax.where(h > 0, h, 0.5 * h.mean("pos")), H),
    "order": (lambda h: hax.cumsum(h, "pos") + hax.sort(h, "pos") + hax.roll(h, 1, "pos"), H),
    "pad": (lambda h: hax.pad(h, {"pos": (1, 2)}), H),
    "top k": (lambda h: hax.top_k(h, "pos", 2)[0], H),
    "triangle": (lambda x: hax.tril(x, "pos", "embed"), X),
    "nmap": (lambda x: hax.nmap(jnp.linalg.norm, "embed")(x), X),
    "vmap": (lambda h: hax.vmap(lambda r: r * r.sum("mlp"), "batch")(h), H),
    "scan": (lambda h: hax.scan(lambda c, x: (c + x, c * x), "pos")(hax.zeros((B, M)), h)[1], H),
    "scan with remat": (lambda h: hax.fold(lambda c, x: hax.sin(c * x), "pos", remat="nested")(hax.ones((B, M)), h), H),
    "map": (lambda h: hax.map(lambda r: r / (1 + r.sum("mlp") ** 2), "pos")(h), H),
    "linear": (lambda m, x: m(x), LINEAR, X),
    "layer norm": (lambda m, h: m(h), NORM, H),
    "rms norm": (lambda m, h: m(h), RMS, H),
    "embedding": (lambda t, i: hnn.Embedding(t, V, E).unembed(hnn.Embedding(t, V, E).embed(i)), T, IDS),
    "attention": (
        lambda x, y: hnn.dot_product_attention(
            "kpos", "embed", x, y.rename({"pos": "kpos"}), y.rename({"pos": "kpos"}), mask=hnn.causal_mask(P, K)
        ),
        X,
        Y,
    ),
    "cross entropy": (
        lambda t, x, i: hnn.cross_entropy_loss(hax.dot(x, t, axis="embed"), V, hnn.one_hot(i, V), reduction=None),
        T,
        X,
        IDS,
    ),
    "loss by gather": (
        lambda t, x, i: hnn.log_softmax(hax.dot(x, t, axis="embed"), "vocab").take("vocab", i),
        T,
        X,
        IDS,
    ),
    "experts": (lambda m, x: m(x, GROUPS), MOE, X["pos", 0].rename({"batch": "rows"})),
    "convolution": (lambda m, x: m(x), CONV, X),
    "pooling": (lambda h: hnn.max_pool(Axis("pos", 2), h, stride=2), H),
    "stacked layers": (layers, STACK, H),
    "dropout": (lambda h: hnn.dropout(h, 0.3, inference=False, key=KEY), H),
    "random": (lambda h: h * hax.random.normal(KEY, (B, P, M)), H),
    "fft": (lambda h: hax.fft(h, "pos").real, H),
}


def evaluate(case, place):
    fn, *args = CASES[case]

    def loss(first, *rest):
        out = fn(first, *rest)
        return hax.sin(out * 0.7).sum().scalar(), out

    (_, out), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(*place(args))
    return out, grad


@functools.cache
def without_mesh(case):
    return evaluate(case, lambda args: args)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("case", CASES)
def test_every_mode_gives_the_same_values_and_gradients(case, kind):
    expected, expected_grad = without_mesh(case)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with set_mesh(mesh), hax.axis_mapping(MAPPING):
        out, grad = evaluate(case, hax.shard)
    assert out.axes == expected.axes
    np.testing.assert_allclose(np.asarray(out.array), np.asarray(expected.array), rtol=1e-4, atol=1e-5)
    for a, b in zip(jax.tree.leaves(grad), jax.tree.leaves(expected_grad), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-4)


def collectives(fn, *args, mapping=MAPPING, kind=AxisType.Auto):
    """The set of collectives in the compiled program of ``fn`` over arguments sharded by ``mapping``."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with set_mesh(mesh), hax.axis_mapping(mapping):
        text = hax.named_jit(fn).lower(*hax.shard(args)).compile().as_text()
    return set(re.findall(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_programs_communicate_where_the_mapping_says_and_nowhere_else(kind):
    assert collectives(lambda h: hax.sin(h) * h.mean("pos") + h["pos", 0], H, kind=kind) == set()
    assert collectives(lambda w, x: hax.dot(x, w, axis="embed"), W, X, kind=kind) == set()
    assert collectives(lambda w, h: hax.dot(h, w, axis="mlp"), W, H, kind=kind) == {"all-reduce"}
    assert collectives(lambda h: h.sum("batch"), H, kind=kind) == {"all-reduce"}

    def grads(w, x):
        return jax.grad(lambda w: hax.sin(hax.dot(x, w, axis="embed")).sum().scalar())(w)

    assert collectives(grads, W, X, kind=kind) == {"all-reduce"}


def test_parameters_stored_in_pieces_are_gathered_to_compute():
    step = hax.fsdp(lambda w, x: hax.dot(x, w, axis="embed"), {"embed": "data"}, {"batch": "data"})
    with set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        w = hax.shard(W, {"embed": "data"})
        x = hax.shard(X.rename({"pos": "rows"}), {"embed": "data"})
        text = step.lower(w, x).compile().as_text()
    assert "all-gather" in text


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_batched_gather_leaves_sharded_logits_where_they_are(kind):
    logits, ids = arr(B, P, V, seed=5), IDS
    mapping = {"batch": "data"}
    assert collectives(lambda x, i: x["vocab", i], logits, ids, mapping=mapping, kind=kind) == set()
    assert collectives(lambda x, i: x.take("vocab", i), logits, ids, mapping=mapping, kind=kind) == set()
    by_gather = -hnn.log_softmax(logits, V).take(V, ids).mean().item()
    assert by_gather == pytest.approx(hnn.cross_entropy_loss(logits, V, hnn.one_hot(ids, V)).item(), rel=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_each_device_can_draw_its_own_block(kind):
    axes = (Axis("a", 16), Axis("b", 6))
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with set_mesh(mesh), hax.axis_mapping({"a": ("data", "model")}):
        draw = jax.jit(lambda key: hax.random.truncated_normal(key, axes, -2, 2, per_shard=True))
        x, again = draw(KEY), draw(KEY)
        assert x.array.sharding.spec[0] == ("data", "model")
        assert x.axes == axes
        values = np.asarray(x.array)
        np.testing.assert_array_equal(values, np.asarray(again.array))
        assert np.abs(values).max() <= 2
        assert len(np.unique(values)) == values.size  # no two devices drew with one key
        with pytest.raises(hax.errors.ShardingError, match="Pad it to 24"):
            hax.random.truncated_normal(KEY, Axis("a", 18), -2, 2, per_shard=True)
        with pytest.raises(hax.errors.AxisSpecError, match="scalars"):
            hax.random.truncated_normal(KEY, axes, -2, hax.ones(axes[1]), per_shard=True)
    without = hax.random.truncated_normal(KEY, axes, -2, 2, per_shard=True)
    np.testing.assert_array_equal(without.array, hax.random.truncated_normal(KEY, axes, -2, 2).array)
