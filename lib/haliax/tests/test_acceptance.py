"""Whole programs: what people build with the library, end to end."""

import math
import re

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, ScanCheckpointPolicy
from haliax.nn.mup import EmbeddingMup, HiddenLinearMup, InputLinearMup, OutputLinearMup
from jax.ad_checkpoint import checkpoint_name

B, P, E, H, D, M, V, L = hax.make_axes(batch=2, pos=5, embed=8, heads=2, head=4, mlp=12, vocab=11, layer=4)
KP = P.alias("key_pos")
KEY = jax.random.key(0)


class Block(eqx.Module):
    """A pre-norm transformer block of the Llama kind."""

    norm: hnn.RmsNorm
    qkv: hnn.Linear
    out: hnn.Linear
    gate: hnn.Linear
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key):
        k = jax.random.split(key, 5)
        three = Axis("three", 3)
        return Block(
            hnn.RmsNorm.init(E, use_bias=False),
            hnn.Linear.init(E, (three, H, D), key=k[0], use_bias=False),
            hnn.Linear.init((H, D), E, key=k[1], use_bias=False),
            hnn.Linear.init(E, M, key=k[2], use_bias=False),
            hnn.Linear.init(E, M, key=k[3], use_bias=False),
            hnn.Linear.init(M, E, key=k[4], use_bias=False),
        )

    def __call__(self, x):
        q, k, v = self.qkv(self.norm(x)).unbind("three")
        k, v = k.rename({"pos": "key_pos"}), v.rename({"pos": "key_pos"})
        mask = hnn.causal_mask(P, KP)
        x = x + self.out(hnn.dot_product_attention(KP, D, q, k, v, mask=mask))
        h = self.norm(x)
        return x + self.down(hnn.silu(self.gate(h)) * self.up(h))


class Model(eqx.Module):
    table: hnn.Embedding
    blocks: hnn.Stacked
    head: hnn.Linear

    @staticmethod
    def init(key, remat=False):
        k = jax.random.split(key, 3)
        blocks = hnn.Stacked.init(L, Block, gradient_checkpointing=remat)(key=jax.random.split(k[1], L.size))
        return Model(hnn.Embedding.init(V, E, key=k[0]), blocks, hnn.Linear.init(E, V, key=k[2], use_bias=False))

    def loss(self, ids):
        logits = self.head(self.blocks.fold(self.table.embed(ids)))
        return hnn.cross_entropy_loss(logits, V, hnn.one_hot(hax.roll(ids, -1, "pos"), V)).scalar()


IDS = hax.random.randint(jax.random.key(1), (B, P), 0, V.size)


@pytest.fixture(scope="module")
def reference():
    return jax.jit(jax.value_and_grad(lambda m: m.loss(IDS)))(Model.init(KEY))


@pytest.mark.parametrize("remat", ["offload", "recompute", "nested"])
def test_what_is_kept_for_the_backward_pass_changes_no_number(reference, remat):
    model = Model.init(KEY, remat)
    loss, grads = jax.jit(jax.value_and_grad(lambda m: m.loss(IDS)))(model)
    np.testing.assert_allclose(loss, reference[0], rtol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(reference[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def kept_by(policy):
    """Shapes of what the forward loop hands to the backward loop, for a body with a named sine and cosine."""
    Layer, Wide = hax.make_axes(layer=4, wide=10)

    class Wave(eqx.Module):
        w: hax.NamedArray

        def __call__(self, x):
            y = hax.named(checkpoint_name(hax.sin(x + self.w).array, "sin"), x.axes) + x
            return hax.named(checkpoint_name(hax.cos(y).array, "cos"), x.axes) + x

    def loss(w, x):
        return hnn.Stacked(Wave(w), Layer, ScanCheckpointPolicy.make(policy)).fold(x).sum().scalar()

    text = str(jax.make_jaxpr(jax.value_and_grad(loss))(hax.ones((Layer, Wide)), hax.ones(Wide)))
    forward = next(line for line in text.splitlines() if "= scan[" in line)
    return [tuple(map(int, shape.split(","))) for shape in re.findall(r":f32(?:<host>)?\[([\d,]+)\]", forward)]


ALL, CARRY = [(10,), (4, 10), (4, 10)], [(10,), (4, 10)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (False, ALL),
        ("save_all", ALL),
        (ScanCheckpointPolicy(save_carries=True, save_inputs=True, save_block_internals=True), ALL),
        (ScanCheckpointPolicy(save_carries=False, save_block_internals=True), ALL),
        (True, CARRY),
        (ScanCheckpointPolicy(simple=True), CARRY),
        (ScanCheckpointPolicy(save_carries=True), CARRY),
        (ScanCheckpointPolicy(save_carries=False, save_block_internals=["cos"]), CARRY),
        (ScanCheckpointPolicy(save_block_internals=["sin"]), ALL),
        (ScanCheckpointPolicy(offload_block_internals=["sin"]), ALL),
        (ScanCheckpointPolicy(simple=True, nested=2), [(10,), (2, 10)]),
    ],
)
def test_the_loop_keeps_what_the_policy_says(policy, expected):
    assert kept_by(policy) == expected


def test_decoding_compiles_once_for_all_positions_and_lengths():
    Cache = Axis("cache", 6)
    q, k, v = (hnn.Linear.init(E, (H, D), key=key) for key in jax.random.split(KEY, 3))
    sequence = hax.random.normal(KEY, (B, P, E))
    traces = []

    @hax.named_jit
    def step(cache_k, cache_v, x, start):
        traces.append(1)
        put = lambda c, new: c.updated_slice({"cache": start}, new.broadcast_axis(Axis("cache", 1)))  # noqa: E731
        cache_k, cache_v = put(cache_k, k(x)), put(cache_v, v(x))
        seen = hax.arange(Cache) <= start.broadcast_axis(Cache)
        return cache_k, cache_v, hnn.dot_product_attention(Cache, D, q(x), cache_k, cache_v, mask=seen)

    cache_k = cache_v = hax.zeros((B, Cache, H, D))
    outputs = []
    for i in range(P.size):
        start = hax.full(B, i, dtype=jnp.int32)
        cache_k, cache_v, out = step(cache_k, cache_v, sequence["pos", i], start)
        outputs.append(out)
    assert len(traces) == 1
    kv = [f(sequence).rename({"pos": "key_pos"}) for f in (k, v)]
    whole = hnn.dot_product_attention(KP, D, q(sequence), *kv, mask=hnn.causal_mask(P, KP))
    got = hax.stack(P, outputs).rearrange(whole.axes)
    np.testing.assert_allclose(got.array, whole.array, rtol=1e-4, atol=1e-5)


def test_a_reference_serves_as_the_cache_inside_a_loop():
    ref = hax.new_ref(hax.zeros((P, E)))

    @jax.jit
    def fill(xs):
        hax.scan(lambda i, x: (i + 1, ref.__setitem__({"pos": i}, x)), P)(jnp.int32(0), xs)

    x = hax.random.normal(KEY, (P, E))
    fill(x)
    np.testing.assert_array_equal(hax.freeze(ref).array, x.array)


def test_a_model_survives_the_trip_through_a_checkpoint_bit_by_bit(tmp_path):
    pytest.importorskip("safetensors", reason="needs the extra state-dict")
    model = Model.init(KEY)
    path = str(tmp_path / "model.safetensors")
    state = hax.state_dict.to_torch_compatible_state_dict(model)
    assert state["blocks.3.qkv.weight"].shape == (3 * H.size * D.size, E.size)
    hax.state_dict.save_state_dict(state, path)
    template = eqx.filter_eval_shape(Model.init, KEY)
    back = hax.state_dict.from_torch_compatible_state_dict(template, hax.state_dict.load_state_dict(path))
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert back.blocks.stacked.qkv.weight.axes == model.blocks.stacked.qkv.weight.axes


def test_experts_and_their_gradients_equal_a_loop_over_experts():
    X = Axis("expert", 3)
    layer = hnn.MoELinear.init(X, E, M, key=KEY)
    tokens = hax.random.normal(KEY, (Axis("token", 7), E))
    choice = np.array([2, 0, 1, 1, 2, 2, 0])

    def routed(layer, tokens):
        order = np.argsort(choice, kind="stable")
        sizes = hax.named(np.bincount(choice, minlength=3).astype(np.int32), X)
        out = layer(tokens["token", hax.named(order, "token")], sizes)
        return out["token", hax.named(np.argsort(order), "token")]

    def looped(layer, tokens):
        rows = [
            hax.dot(tokens["token", i], layer.weight["expert", int(e)], axis=E) + layer.bias
            for i, e in enumerate(choice)
        ]
        return hax.stack("token", rows)

    def loss(fn):
        return lambda layer, tokens: hax.sin(fn(layer, tokens)).sum().scalar()

    a, da = jax.value_and_grad(loss(routed), argnums=(0, 1))(layer, tokens)
    b, db = jax.value_and_grad(loss(looped), argnums=(0, 1))(layer, tokens)
    np.testing.assert_allclose(a, b, rtol=1e-4)
    for x, y in zip(jax.tree.leaves(da), jax.tree.leaves(db), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def coordinate_sizes(width, mup, steps=4):
    """Mean absolute activation of the last hidden layer and of the output after a few steps at one learning rate."""
    Wide, In, Out = hax.make_axes(wide=width, inp=6, out=4)
    keys = jax.random.split(jax.random.key(3), 4)
    kinds = (InputLinearMup, HiddenLinearMup, OutputLinearMup) if mup else (None,) * 3

    def linear(i, o, key, kind):
        extra = {} if kind is None else {"reparam_cls": kind}
        return hnn.Linear.init(i, o, key=key, use_bias=False, **extra)

    layers = [
        linear(In, Wide, keys[0], kinds[0]),
        linear(Wide, Wide.alias("wide2"), keys[1], kinds[1]),
        linear(Wide.alias("wide2"), Out, keys[2], kinds[2]),
    ]
    x = hax.random.normal(keys[3], (Axis("batch", 16), In))
    y = hax.ones((Axis("batch", 16), Out))

    def forward(layers, x):
        hidden = hnn.relu(layers[1](hnn.relu(layers[0](x))))
        return layers[2](hidden), hidden

    @jax.jit
    def step(layers):
        grads = jax.grad(lambda m: ((forward(m, x)[0] - y) ** 2).mean().scalar())(layers)
        # The sign of the gradient is Adam's first step: what muP's learning rates are made for.
        return [
            eqx.apply_updates(layer, jax.tree.map(lambda g, s=layer.reparam.lr_scale: -0.02 * s * jnp.sign(g), g))
            for layer, g in zip(layers, grads, strict=True)
        ]

    for _ in range(steps):
        layers = step(layers)
    out, hidden = forward(layers, x)
    return abs(hidden).mean().item(), abs(out).mean().item()


def test_under_mup_activations_keep_their_size_when_the_model_widens():
    narrow, wide = coordinate_sizes(32, True), coordinate_sizes(512, True)
    assert abs(math.log2(wide[0] / narrow[0])) < 1, (narrow, wide)
    assert wide[1] < 2 * narrow[1], (narrow, wide)  # at the start the output shrinks with width, by design
    plain_narrow, plain_wide = coordinate_sizes(32, False, steps=1), coordinate_sizes(512, False, steps=1)
    assert plain_wide[1] > 8 * plain_narrow[1]  # one step under the standard parametrisation


def test_mup_embeddings_scale_only_the_way_out():
    table = hnn.Embedding.init(V, E, key=KEY, reparam_cls=EmbeddingMup)
    plain = hnn.Embedding(table.weight, V, E)
    x = hax.ones(E)
    np.testing.assert_allclose(table.unembed(x).array * E.size, plain.unembed(x).array, rtol=1e-5)
    np.testing.assert_array_equal(table.embed(IDS).array, plain.embed(IDS).array)
