"""Layers, activations, losses, attention: against Equinox, jax.nn and hand-written formulas."""

import dataclasses

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import AxisCollisionError, AxisNotFoundError, AxisSpecError

B, E, O, V, P = hax.make_axes(B=2, E=6, O=4, V=7, P=5)


def close(ours, theirs, **kw):
    np.testing.assert_allclose(np.asarray(getattr(ours, "array", ours)), np.asarray(theirs), rtol=1e-5, atol=1e-5, **kw)


@pytest.mark.parametrize("out_first", [True, False])
def test_linear_contracts_in_and_puts_out_last(key, out_first):
    layer = hnn.Linear.init((E, B.alias("x")), (O, V), key=key, out_first=out_first)
    assert layer.out_first is out_first
    x = hax.random.normal(key, (P, B.alias("x"), E))
    out = layer(x)
    assert out.names == ("P", "O", "V")
    expected = hax.dot(x, layer.weight, axis=("E", "x")) + layer.bias
    close(out, expected.array)
    assert all(not callable(leaf) for leaf in jax.tree.leaves(layer))
    std = float(layer.weight.array.std())
    assert 0.5 < std * np.sqrt(12) < 1.5


def test_linear_refuses_inputs_that_lack_an_axis(key):
    layer = hnn.Linear.init(E, O, key=key)
    with pytest.raises(AxisNotFoundError, match="Did you mean 'e'"):
        layer(hax.ones({"e": 6}))
    with pytest.raises(AxisCollisionError):
        hnn.Linear.init(E, E, key=key)


@pytest.mark.parametrize("out_first", [True, False])
def test_storage_order_dot_general_has_the_same_gradients(key, out_first):
    plain = hnn.Linear.init(E, O, key=key, out_first=out_first)
    stored = dataclasses.replace(plain, dot_general=hnn.StorageOrderDotGeneral())
    x = hax.random.normal(key, (B, P, E))

    def loss(layer, x):
        return (layer(x) ** 2).sum().scalar()

    for a, b in zip(
        jax.tree.leaves(jax.grad(loss, (0, 1))(plain, x)),
        jax.tree.leaves(jax.grad(loss, (0, 1))(stored, x)),
        strict=True,
    ):
        close(a, b)
    text = str(jax.make_jaxpr(jax.grad(loss))(stored, x))
    assert "transpose" not in text.replace("transpose_", ""), text


def test_norms_equal_equinox(key):
    x = hax.random.normal(key, (B, E)) * 3 + 1
    close(hnn.LayerNorm.init(E)(x), jax.vmap(eqx.nn.LayerNorm(6))(x.array))
    close(hnn.RmsNorm.init(E)(x), jax.vmap(eqx.nn.RMSNorm(6))(x.array))
    both = hnn.LayerNorm.init((B, E))(x)
    close(both.mean(), 0.0)
    half = hnn.RmsNorm.init(E, use_weight=False, use_bias=False)(x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    exact = hnn.LayerNorm.init(E, dtype=jnp.float32, use_weight=False, use_bias=False)(x.astype(jnp.bfloat16))
    np.testing.assert_allclose(exact.astype(jnp.float32).mean("E").array, np.zeros(2), atol=5e-3)
    with pytest.raises(AxisNotFoundError):
        hnn.LayerNorm.init(E)(hax.ones(B))


def test_embedding_looks_up_and_unembeds(key):
    table = hnn.Embedding.init(V, E, key=key)
    ids = hax.named([[1, 2], [3, 0]], ("B", "P"))
    close(table(ids), table.weight.array[ids.array])
    close(table.unembed(table(ids)), table.weight.array[ids.array] @ table.weight.array.T)
    assert table.resize_embeddings(9).weight.shape == {"V": 9, "E": 6}
    assert table.resize_embeddings(9).Vocab.size == 9
    with pytest.raises(AxisSpecError):
        table(hax.ones(B))


def test_dropout_matches_equinox_bits(key):
    x = hax.ones((B, E))
    close(hnn.Dropout(0.4)(x, key=key), eqx.nn.Dropout(0.4)(x.array, key=key))
    assert hnn.Dropout(0.4)(x, inference=True) is x
    assert hnn.Dropout(0.0)(x) is x
    assert hnn.Dropout(1.0)(x, key=key).sum().item() == 0
    shared = hnn.Dropout(0.5, broadcast_axes="B")(x, key=key)
    assert np.array_equal(shared.array[0], shared.array[1])
    with pytest.raises(RuntimeError, match="key"):
        hnn.Dropout(0.5)(x)
    assert not hnn.Dropout(0.0).is_active
    assert hnn.dropout(x, 0.5, inference=False, key=key).dtype == x.dtype


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_mlp_alternates_names(key, depth):
    mlp = hnn.MLP.init(E, O, 8, depth, key=key)
    names = [layer.Out.name for layer in mlp.layers]
    assert names == ["mlp" if i % 2 == 0 else "mlp2" for i in range(depth)] + ["O"]
    out = mlp(hax.ones((B, E)))
    assert out.names == ("B", "O")
    assert mlp.In == E
    assert mlp.Out == O


ACTIVATIONS = """relu relu6 sigmoid softplus soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid hard_silu
hard_swish hard_tanh elu celu selu gelu""".split()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_jax_nn(name):
    x = hax.linspace(E, start=-3, stop=3)
    close(getattr(hnn, name)(x), getattr(jax.nn, name)(x.array))


def test_further_activations():
    x = hax.linspace(E, start=-3, stop=3)
    close(hnn.gelu(x, approximate=False), jax.nn.gelu(x.array, approximate=False))
    close(hnn.quick_gelu(x), x.array * jax.nn.sigmoid(1.702 * x.array))
    close(hnn.relu_squared(x), np.maximum(x.array, 0) ** 2)
    assert np.isnan(hnn.relu_squared(hax.named(np.float32("nan"), ())).item())
    close(hnn.glu(x, "E"), jax.nn.glu(x.array))
    with pytest.raises(AxisSpecError, match="even"):
        hnn.glu(hax.ones(P), "P")


def test_softmax_family():
    x = hax.random.normal(jax.random.key(1), (B, E))
    close(hnn.softmax(x, "B"), jax.nn.softmax(x.array, axis=0))
    close(hnn.softmax(x, ("B", "E")), jax.nn.softmax(x.array, axis=(0, 1)))
    close(hnn.log_softmax(x, "E"), jax.nn.log_softmax(x.array))
    close(hnn.logsumexp(x, "E"), jax.nn.logsumexp(x.array, axis=1))
    close(hnn.standardize(x, "E"), jax.nn.standardize(x.array, axis=1))
    mask = hax.arange(E) < 4
    close(hnn.standardize(x, "E", where=mask)["E", :4], jax.nn.standardize(x.array[:, :4], axis=1))


def test_one_hot():
    out = hnn.one_hot(hax.named([0, 9], "P"), V)
    assert out.names == ("P", "V")
    assert out.sum("V").tolist() == [1.0, 0.0]
    assert hnn.one_hot(-1, V).tolist()[-1] == 1.0
    with pytest.raises(AxisSpecError):
        hnn.one_hot(7, V)
    with pytest.raises(AxisCollisionError):
        hnn.one_hot(hax.arange(V), V)


def test_cross_entropy_and_reductions():
    logits = hax.random.normal(jax.random.key(0), (B, P, V))
    ids = hax.named(np.arange(10).reshape(2, 5) % 7, ("B", "P"))
    targets = hnn.one_hot(ids, V)
    each = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits.array)), np.asarray(ids.array)[..., None], -1)[
        ..., 0
    ]
    close(hnn.cross_entropy_loss(logits, V, targets), each.mean())
    close(hnn.cross_entropy_loss(logits, V, targets, reduction=None), each)
    close(hnn.cross_entropy_loss(logits, V, targets, reduction_axis="P"), each.mean(1))
    close(hnn.cross_entropy_loss(logits, V, targets, reduction=hax.sum), each.sum())
    mask = hax.arange(P) > 1
    close(hnn.cross_entropy_loss(logits, V, targets, where=mask), each[:, 2:].mean())
    close(hnn.cross_entropy_loss(logits, V, targets, reduction=None, where=mask)["P", 0], np.zeros(2))
    weight = hax.arange(P, dtype=float)
    close(hnn.cross_entropy_loss(logits, V, targets, weight=weight), (each * np.arange(5)).sum() / 20)
    assert hnn.cross_entropy_loss(logits, V, targets, weight=weight * 0).item() == 0
    with pytest.warns(UserWarning, match="one_hot"):
        hnn.cross_entropy_loss(logits, V, targets.astype(int))
    _, normalizer = hnn.cross_entropy_loss_and_log_normalizers(logits, V, targets)
    close(normalizer, jax.nn.logsumexp(logits.array, axis=-1))
    probability = hax.full((B, P), 0.25)
    close(hnn.binary_cross_entropy_loss(hax.zeros((B, P)), probability), np.log(2))


def test_attention_equals_jax_nn():
    K, Hd, D = hax.make_axes(K=5, Hd=3, D=4)
    q = hax.random.normal(jax.random.key(0), (B, P, Hd, D))
    k = hax.random.normal(jax.random.key(1), (B, K, Hd, D))
    v = hax.random.normal(jax.random.key(2), (B, K, Hd, D))
    mask = hnn.causal_mask(P, K)
    out = hnn.dot_product_attention(K, D, q, k, v, mask=mask)
    expected = jax.nn.dot_product_attention(q.array, k.array, v.array, mask=np.asarray(mask.array)[None, None])
    close(out.rearrange(("B", "P", "Hd", "D")), expected)
    weights = hnn.dot_product_attention_weights(D, K, q, k, attention_dtype=jnp.float32)
    close(weights.sum("K"), np.ones((2, 5, 3)).transpose(0, 1, 2) if weights.names[1] == "P" else np.ones((2, 3, 5)))
    with pytest.raises(ValueError, match="KPos"):
        hnn.dot_product_attention("P", D, q, q, q)
    with pytest.raises(TypeError):
        hnn.dot_product_attention(K, D, q.array, k, v)


def test_masks():
    K = Axis("K", 5)
    causal = hnn.causal_mask(P, K)
    assert np.array_equal(causal.array, np.tril(np.ones((5, 5), bool)))
    shifted = hnn.causal_mask(P, K, q_start=hax.named([0, 2], "B"))
    assert shifted.names == ("B", "P", "K")
    assert np.array_equal(shifted.array[1], np.arange(5)[:, None] + 2 >= np.arange(5))
    prefix = hnn.attention.prefix_lm_mask(P, K, 2)
    assert prefix["P", 0].tolist() == [True, True, False, False, False]
    assert hnn.combine_masks_and(None, causal) is causal
    assert hnn.combine_masks_or(causal, None) is causal
    both = hnn.combine_masks_and(causal, hax.arange(K) > 0)
    assert both["P", 0].tolist() == [False] * 5
    assert hnn.attention.mask_to_bias(causal)["P", 0].tolist() == [0.0] + [-1e9] * 4
    forget = hnn.attention.forgetful_causal_mask(K, 0.9, key=jax.random.key(0))
    assert forget["K", 0].item()


def test_alibi_slopes():
    bias = hnn.attention.alibi_attention_bias(Axis("heads", 8), Axis("K", 3))
    assert bias.names == ("heads", "K")
    close(bias["K", 1], [2.0 ** -(i + 1) for i in range(8)])
    assert hnn.attention.alibi_attention_bias(Axis("heads", 6), Axis("K", 3)).axis_size("heads") == 6


@pytest.mark.parametrize("out_first", [True, False])
def test_moe_linear_equals_a_loop_over_experts(key, out_first):
    X, R = Axis("experts", 3), Axis("rows", 6)
    layer = hnn.MoELinear.init(X, E, O, key=key, out_first=out_first)
    assert layer.out_first is out_first
    rows = hax.random.normal(key, (R, E))
    sizes = hax.named(np.array([2, 1, 3], np.int32), "experts")
    out = layer(rows, sizes)
    expected, start = [], 0
    for e, n in enumerate([2, 1, 3]):
        expected.append(hax.dot(rows["rows", start : start + n], layer.weight["experts", e], axis="E").array)
        start += n
    close(out, np.concatenate(expected))
    assert layer(rows.rearrange(("E", "rows")), sizes).names == ("O", "rows")
    grads = eqx.filter_grad(lambda m: (m(rows, sizes) ** 2).sum().scalar())(layer)
    assert grads.weight.names == layer.weight.names
    with pytest.raises(AxisSpecError):
        layer(hax.ones((B, R, E)), sizes)


def test_ragged_dot_implementations_agree(monkeypatch):
    lhs = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    rhs = np.random.default_rng(1).standard_normal((3, 8, 16)).astype(np.float32)
    sizes = jnp.array([2, 1, 3])
    expected = np.concatenate([lhs[:2] @ rhs[0], lhs[2:3] @ rhs[1], lhs[3:] @ rhs[2]])
    close(hnn.ragged_dot(jnp.asarray(lhs), jnp.asarray(rhs), sizes), expected)
    monkeypatch.setenv("RAGGED_DOT_IMPL", "xla")
    close(hnn.ragged_dot(jnp.asarray(lhs), jnp.asarray(rhs), sizes), expected)
    with pytest.raises(AxisSpecError, match="implementation"):
        hnn.ragged_dot(jnp.asarray(lhs), jnp.asarray(rhs), sizes, implementation="fast")
    with pytest.raises(TypeError):
        hnn.ragged_dot(jnp.asarray(lhs)[0], jnp.asarray(rhs), sizes)


def test_mup_scales():
    I, O4 = Axis("i", 16), Axis("o", 4)
    from haliax.nn import mup

    table = {
        mup.LinearStandardParam: (0.25, 1, 1),
        mup.InputLinearMup: (1, 1, 1),
        mup.HiddenLinearMup: (0.25, 1, 1 / 16),
        mup.OutputLinearMup: (1, 1 / 16, 1),
    }
    for cls, (init, active, lr) in table.items():
        assert cls.init_scale(I, O4) == init
        assert cls(I, O4).active_scale == active
        assert cls(I, O4).lr_scale == lr
    assert mup.EmbeddingStandardParam.init_scale(I, O4) == 1 / 16
    assert mup.EmbeddingMup(I, O4).unembed_active_scale == 1 / 16
    layer = hnn.Linear.init(I, O4, key=jax.random.key(0), reparam_cls=hnn.Linear.output_reparam(True))
    close(layer(hax.ones(I)), hax.dot(hax.ones(I), layer.weight, axis="i").array / 16)
    assert hnn.Linear.hidden_reparam(False) is mup.LinearStandardParam


@pytest.mark.parametrize("padding", [0, 1, "SAME"])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_equals_equinox_for_any_layout(key, padding, groups):
    X, Y, I, O4, N = hax.make_axes(X=7, Y=6, I=4, O=6, N=2)
    conv = hnn.Conv.init(("X", "Y"), I, O4, (3, 2), stride=(2, 1), padding=padding, dilation=1, groups=groups, key=key)
    ref = eqx.nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=padding, groups=groups, key=key)
    ref = eqx.tree_at(lambda c: (c.weight, c.bias), ref, (conv.weight.array, conv.bias.array[:, None, None]))
    x = hax.random.normal(key, (Y, N, I, X))
    out = conv(x)
    assert out.names == ("Y", "N", "O", "X")
    close(out.rearrange(("N", "O", "X", "Y")), jax.vmap(ref)(x.rearrange(("N", "I", "X", "Y")).array))
    with pytest.raises(AxisNotFoundError):
        conv(hax.ones((X, I)))
    with pytest.raises(AxisCollisionError):
        conv(hax.ones((X, Y, I, O4)))


def test_conv_transpose_equals_equinox(key):
    X, I, O4 = hax.make_axes(X=5, I=3, O=4)
    conv = hnn.ConvTranspose.init("X", I, O4, 3, stride=2, padding=1, output_padding=1, key=key)
    ref = eqx.nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, output_padding=1, key=key)
    ref = eqx.tree_at(lambda c: (c.weight, c.bias), ref, (conv.weight.array, conv.bias.array[:, None]))
    x = hax.random.normal(key, (I, X))
    close(conv(x).rearrange(("O", "X")), ref(x.array))
    with pytest.raises(AxisSpecError):
        hnn.ConvTranspose.init("X", I, O4, 3, output_padding=1, key=key)


def test_pooling():
    x = hax.arange({"N": 2, "X": 5, "Y": 4}, dtype=float)
    win = (Axis("X", 2), Axis("Y", 2))
    r = np.asarray(x.array)
    out = hnn.max_pool(win, x, stride=2)
    close(out, r[:, :4].reshape(2, 2, 2, 2, 2).max((2, 4)))
    assert hnn.max_pool(win, x, stride=2, use_ceil=True).shape == {"N": 2, "X": 3, "Y": 2}
    close(hnn.min_pool(win, x, stride=2), r[:, :4].reshape(2, 2, 2, 2, 2).min((2, 4)))
    close(hnn.mean_pool(win, x, stride=2), r[:, :4].reshape(2, 2, 2, 2, 2).mean((2, 4)))
    assert hnn.mean_pool(Axis("X", 3), hax.ones({"X": 4}), padding="SAME").tolist() == [1.0] * 4
    padded = hnn.mean_pool(Axis("X", 3), hax.ones({"X": 4}), padding=1, count_include_pad=True)
    np.testing.assert_allclose(padded.array, [2 / 3, 1, 1, 2 / 3], rtol=1e-6)
    g = jax.grad(lambda v: hnn.max_pool(Axis("X", 2), v, stride=2).sum().scalar())(hax.arange({"X": 4}, dtype=float))
    assert g.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert hnn.max_pool(Axis("X", 2), hax.arange({"X": 4})).dtype == jnp.int32
    with pytest.raises(AxisSpecError):
        hnn.max_pool(win, x, stride=(1, 2, 3))
