"""Names cost nothing once traced: a named program lowers to the program one would write by hand."""

import re

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

B, P, E, H, D, M, V, L = hax.make_axes(batch=2, pos=8, embed=16, heads=4, head=4, mlp=32, vocab=64, layer=4)
KP = P.alias("kpos")


def jaxpr(fn, *args):
    return re.sub(r"name=\w+|0x[0-9a-f]+", "", str(jax.make_jaxpr(fn)(*args)))


X = hax.ones((B, P, E))
R = jnp.ones((2, 8, 16))
W = hax.ones((M, E))
RW = jnp.ones((32, 16))
IDS = hax.named(np.array([3, 1]), "i")


@pytest.mark.parametrize(
    ("named", "positional"),
    [
        (lambda x, w: x + x, lambda x, w: x + x),
        (
            lambda x, w: x * x.sum("pos").rename({"batch": "batch"}).broadcast_axis(()),
            lambda x, w: x * x.sum(1)[:, None],
        ),
        (lambda x, w: x + w["mlp", 0], lambda x, w: x + w[0]),
        (lambda x, w: hax.mean(x, ("pos", "embed")), lambda x, w: jnp.mean(x, (1, 2))),
        (lambda x, w: hax.dot(x, w, axis="embed"), lambda x, w: jax.lax.dot_general(x, w, (((2,), (1,)), ((), ())))),
        (lambda x, w: x["pos", 2:5], lambda x, w: x[:, 2:5]),
        (lambda x, w: x["pos", 2], lambda x, w: x[:, 2]),
        (lambda x, w: x["pos", IDS], lambda x, w: x[:, IDS.array]),
        (lambda x, w: x.at["pos", 2].set(0.0), lambda x, w: x.at[:, 2].set(jnp.float32(0))),
        (lambda x, w: x.rearrange(("embed", ...)), lambda x, w: jnp.transpose(x, (2, 0, 1))),
        (
            lambda x, w: hax.rearrange(x, "b p (h d) -> b h p d", h=4),
            lambda x, w: x.reshape(2, 8, 4, 4).transpose(0, 2, 1, 3),
        ),
        (lambda x, w: hnn.softmax(x, "embed"), lambda x, w: jax.nn.softmax(x, axis=2)),
        (lambda x, w: hax.concatenate("pos", [x, x]), lambda x, w: jnp.concatenate([x, x], 1)),
        (lambda x, w: hax.where(x > 0, x, 0.0), lambda x, w: jnp.where(x > 0, x, 0.0)),
        (lambda x, w: w.take("mlp", IDS), lambda x, w: jnp.take(w, IDS.array, axis=0)),
        (lambda x, w: hax.roll(x, 1, "pos"), lambda x, w: jnp.roll(x, 1, 1)),
        (lambda x, w: hax.cumsum(x, "pos"), lambda x, w: jnp.cumsum(x, 1)),
        (lambda x, w: hax.sort(x, "embed"), lambda x, w: jnp.sort(x, 2)),
        (lambda x, w: hax.max(x, "pos"), lambda x, w: jnp.max(x, 1)),
        (lambda x, w: hax.stack("new", [x, x]), lambda x, w: jnp.stack([x, x])),
        (lambda x, w: hax.pad(x, {"pos": (1, 2)}), lambda x, w: jnp.pad(x, ((0, 0), (1, 2), (0, 0)))),
        (lambda x, w: x.flatten_axes(("pos", "embed"), "f"), lambda x, w: x.reshape(2, 128)),
        (lambda x, w: x.unflatten_axis("embed", (H, D)), lambda x, w: x.reshape(2, 8, 4, 4)),
        (lambda x, w: x["pos", hax.ds(2, 3)], lambda x, w: x[:, 2:5]),
        (lambda x, w: hnn.gelu(x), lambda x, w: jax.nn.gelu(x)),
        (lambda x, w: x.astype(jnp.bfloat16), lambda x, w: x.astype(jnp.bfloat16)),
        (
            lambda x, w: x.updated_slice({"pos": 2}, x["pos", 0:3]),
            lambda x, w: jax.lax.dynamic_update_slice(x, x[:, 0:3], (0, 2, 0)),
        ),
        (
            lambda x, w: hax.vmap(lambda r: r.sum("embed"), "batch")(x),
            lambda x, w: jax.vmap(lambda r: jnp.sum(r, 1))(x),
        ),
        (lambda x, w: hax.tril(x, "pos", "embed"), lambda x, w: jnp.tril(x)),
    ],
)
def test_a_named_operation_has_the_jaxpr_of_the_positional_one(named, positional):
    ours = jaxpr(lambda x, w: named(x, w).array, X, W)
    assert ours == jaxpr(positional, R, RW)


class Block(eqx.Module):
    norm1: hnn.RmsNorm
    qkv: hnn.Linear
    out: hnn.Linear
    norm2: hnn.RmsNorm
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key):
        k = jax.random.split(key, 4)
        linear = lambda i, o, k: hnn.Linear.init(i, o, key=k, use_bias=False)  # noqa: E731
        norm = hnn.RmsNorm.init(E, use_bias=False)
        three = hax.Axis("three", 3)
        return Block(
            norm, linear(E, (three, H, D), k[0]), linear((H, D), E, k[1]), norm, linear(E, M, k[2]), linear(M, E, k[3])
        )

    def __call__(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).unbind("three")
        k, v = k.rename({"pos": "kpos"}), v.rename({"pos": "kpos"})
        x = x + self.out(hnn.dot_product_attention("kpos", "head", q, k, v, mask=mask))
        return x + self.down(hnn.silu(self.up(self.norm2(x))))


class Transformer(eqx.Module):
    table: hnn.Embedding
    blocks: hnn.Stacked

    def __call__(self, ids):
        x = self.blocks.fold(self.table.embed(ids), hnn.causal_mask(P, KP))
        return self.table.unembed(x)


def build(key):
    return Transformer(hnn.Embedding.init(V, E, key=key), hnn.Stacked.init(L, Block)(key=jax.random.split(key, 4)))


def named_loss(model, ids):
    logits = model(hax.named(ids, ("batch", "pos")))
    return hnn.cross_entropy_loss(logits, V, hnn.one_hot(hax.named(ids, ("batch", "pos")), V)).scalar()


def mm(x, w, contract, batch=((), ())):
    return jax.lax.dot_general(x, w, (contract, batch))


def rms(x, w):
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=(x.ndim - 1,), keepdims=True) + 1e-5)
    return w * (x32 * scale).astype(x.dtype)


def raw_loss(params, ids):
    """The same model in plain jnp: B batch, P pos, E embed, H heads, D head."""
    table_VE, blocks = params
    x_BPE = jnp.take(table_VE, ids, axis=0)
    q_pos, k_pos = jnp.arange(8), jnp.arange(8)
    mask_PK = q_pos[:, None] >= k_pos

    def block(x_BPE, p):
        n1_E, qkv_3HDE, out_EHD, n2_E, up_ME, down_EM = p
        y = mm(rms(x_BPE, n1_E), qkv_3HDE, ((2,), (3,)))
        q_BPHD, k_BPHD, v_BPHD = (jax.lax.index_in_dim(y, i, 2, keepdims=False) for i in range(3))
        q_BPHD = q_BPHD * (1 / 2.0)
        s_BHPK = mm(q_BPHD, k_BPHD, ((3,), (3,)), ((0, 2), (0, 2)))
        s_BPHK = jnp.transpose(s_BHPK, (0, 2, 1, 3))
        s_BPHK = jnp.where(mask_PK[:, None, :], s_BPHK, -1e9)
        a_BPHK = jax.nn.softmax(s_BPHK, axis=3)
        o_BHPD = mm(a_BPHK, v_BPHD, ((3,), (1,)), ((0, 2), (0, 2)))
        o_BPHD = jnp.transpose(o_BHPD, (0, 2, 1, 3))
        x_BPE = x_BPE + mm(o_BPHD, out_EHD, ((2, 3), (1, 2)))
        h_BPM = jax.nn.silu(mm(rms(x_BPE, n2_E), up_ME, ((2,), (1,))))
        return x_BPE + mm(h_BPM, down_EM, ((2,), (1,))), None

    x_BPE, _ = jax.lax.scan(block, x_BPE, blocks)
    logits_BPV = mm(x_BPE, table_VE, ((2,), (1,)))
    target_BPV = jax.nn.one_hot(ids, 64)
    log_z = jax.nn.logsumexp(logits_BPV, axis=2)
    nll = log_z[:, :, None] - logits_BPV
    return jnp.mean(mm(target_BPV, nll, ((2,), (2,)), ((0, 1), (0, 1))))


def raw_params(model):
    b = model.blocks.stacked
    linears = (b.norm1.weight, b.qkv.weight, b.out.weight, b.norm2.weight, b.up.weight, b.down.weight)
    return model.table.weight.array, tuple(w.array for w in linears)


def program(lowered):
    """The StableHLO text without the names of values, functions and results."""
    text = re.sub(r' *\{jax\.result_info = "[^"]*"\}', "", lowered.as_text())
    return re.sub(r"[%@][\w#:.]+", "%", text).splitlines()


def test_a_transformer_lowers_to_the_hand_written_program():
    model = build(jax.random.key(0))
    ids = jnp.arange(16).reshape(2, 8) * 3
    ours = jax.jit(jax.value_and_grad(named_loss)).lower(model, ids)
    theirs = jax.jit(jax.value_and_grad(raw_loss)).lower(raw_params(model), ids)
    assert program(ours) == program(theirs)
    loss, grads = ours.compile()(model, ids)
    expected, raw_grads = theirs.compile()(raw_params(model), ids)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(raw_params(grads)), jax.tree.leaves(raw_grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
