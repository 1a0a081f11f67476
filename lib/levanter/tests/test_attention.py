"""Attention: masks are conjunctions, back-ends agree, windows count like Hugging Face's."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.errors import MaskError, ModelShapeError
from levanter.layers.attention import AttentionBackend, AttentionSettings, dot_product_attention
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.rotary import (
    DefaultRotaryConfig,
    Llama3RotaryConfig,
    YarnRotaryConfig,
    apply_rotary,
    rotary_tables,
)

P = 12
SEGMENTS = hax.named(np.array([[0] * 5 + [1] * 7, [0] * 3 + [1] * 9]), (Axis("batch", 2), Axis("position", P)))
EXPLICIT = hax.named(np.random.default_rng(0).random((P, P)) < 0.7, (Axis("position", P), Axis("key_position", P)))
MASKS = {
    "none": AttentionMask(),
    "causal": AttentionMask.causal(),
    "offset": AttentionMask.causal(offset=2),
    "window": AttentionMask.causal(sliding_window=3),
    "both_ways": AttentionMask(bidirectional_window=2),
    "segments": AttentionMask.causal().with_segment_ids(SEGMENTS),
    "explicit": AttentionMask.causal() & AttentionMask.explicit(EXPLICIT),
}


def whole(mask: AttentionMask) -> np.ndarray:
    allowed = mask.materialize(P, P)
    return np.ones((2, 1, P, P), bool) if allowed is None else np.broadcast_to(allowed, (2, 1, P, P))


def reference(q, k, v, mask, cap=None):
    """Softmax attention in float64 NumPy, rows without keys give zeros."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // k.shape[1], axis=1) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    weights = np.where(whole(mask), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total == 0, 1, total)) @ v


def inputs(groups: int = 2):
    rng = np.random.default_rng(3)
    shapes = [(2, 4, P, 8), (2, groups, P, 8), (2, groups, P, 8)]
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def test_masks_say_what_their_names_say():
    i, j = np.arange(P)[:, None], np.arange(P)[None]
    assert np.array_equal(whole(MASKS["causal"])[0, 0], j <= i)
    assert np.array_equal(whole(MASKS["offset"])[0, 0], j <= i + 2)
    assert np.array_equal(whole(MASKS["window"])[0, 0], (j <= i) & (i - j < 3))
    assert np.array_equal(whole(MASKS["both_ways"])[0, 0], abs(i - j) <= 2)
    ids = np.asarray(SEGMENTS.array)
    assert np.array_equal(whole(MASKS["segments"])[:, 0], (ids[:, :, None] == ids[:, None]) & (j <= i))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(sorted(MASKS)),
    st.integers(0, P - 1),
    st.integers(0, P - 1),
    st.data(),
)
def test_conjunction_and_blocks_agree_with_the_whole(left, right, q_start, k_start, data):
    a, b = MASKS[left], MASKS[right]
    try:
        both = a & b
    except MaskError:
        assert {left, right} <= {"segments", "causal", "offset", "window", "explicit"}
        return
    assert np.array_equal(whole(both), whole(a) & whole(b))
    q_len = data.draw(st.integers(1, P - q_start))
    k_len = data.draw(st.integers(1, P - k_start))
    block = both.block(q_start, q_len, k_start, k_len)
    if block is not None:
        expected = whole(both)[:, :, q_start : q_start + q_len, k_start : k_start + k_len]
        assert np.array_equal(np.broadcast_to(block, expected.shape), expected)
    lo, hi = both.key_range(q_start, q_len, P)
    hidden = np.ones(P, bool)
    hidden[int(lo) : int(hi)] = False
    assert not whole(both)[:, :, q_start : q_start + q_len][..., hidden].any()


def test_unions_and_double_segments_are_refused():
    with pytest.raises(MaskError):
        _ = MASKS["causal"] | MASKS["none"]
    with pytest.raises(MaskError):
        _ = MASKS["segments"] & MASKS["segments"]
    with pytest.raises(MaskError):
        AttentionMask(sliding_window=0)


@pytest.mark.parametrize("name", sorted(MASKS))
@pytest.mark.parametrize("backend", [AttentionBackend.VANILLA, AttentionBackend.JAX_FLASH])
def test_both_backends_match_float64_in_value_and_gradient(name, backend):
    cap = 2.0 if name in ("causal", "explicit") else None
    settings_ = AttentionSettings(backend=backend, block_size=4, soft_cap=cap)
    q, k, v = inputs()
    run = jax.jit(lambda q, k, v: dot_product_attention(q, k, v, MASKS[name], settings_))
    np.testing.assert_allclose(run(q, k, v), reference(q, k, v, MASKS[name], cap), atol=2e-5)
    if backend == AttentionBackend.JAX_FLASH:
        pull = jnp.asarray(np.random.default_rng(5).normal(size=q.shape), jnp.float32)
        plain = AttentionSettings(backend=AttentionBackend.VANILLA, soft_cap=cap)

        def loss(settings_):
            return lambda q, k, v: jnp.sum(pull * dot_product_attention(q, k, v, MASKS[name], settings_))

        ours = jax.jit(jax.grad(loss(settings_), (0, 1, 2)))(q, k, v)
        theirs = jax.jit(jax.grad(loss(plain), (0, 1, 2)))(q, k, v)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=5e-5)


def test_heads_that_do_not_group_and_blocks_that_do_not_divide_are_refused():
    q, k, v = inputs(groups=2)
    with pytest.raises(ModelShapeError):
        dot_product_attention(q[:, :3], k, v, None)
    with pytest.raises(ModelShapeError):
        dot_product_attention(q, k, v, None, AttentionSettings(backend=AttentionBackend.JAX_FLASH, block_size=5))


def test_rotation_depends_only_on_distance():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 16)), jnp.float32)

    def score(i, j):
        cos, sin = rotary_tables(DefaultRotaryConfig(), 16, jnp.array([i, j]))
        turned = apply_rotary(x, cos, sin)
        return float(turned[0] @ turned[1])

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-4)


def test_llama3_keeps_short_wavelengths_and_divides_long_ones():
    plain = np.asarray(DefaultRotaryConfig(theta=5e5).inverse_frequencies(128))
    scaled = np.asarray(Llama3RotaryConfig().inverse_frequencies(128))
    assert scaled[0] == pytest.approx(plain[0]) and scaled[-1] == pytest.approx(plain[-1] / 8)
    assert np.all(scaled <= plain * (1 + 1e-6)) and np.all(scaled >= plain / 8 * (1 - 1e-6))


def test_yarn_scales_the_tables_and_only_slow_pairs():
    config = YarnRotaryConfig(factor=4.0, original_max_position_embeddings=2048)
    plain = np.asarray(DefaultRotaryConfig().inverse_frequencies(64))
    scaled = np.asarray(config.inverse_frequencies(64))
    assert scaled[0] == pytest.approx(plain[0]) and scaled[-1] == pytest.approx(plain[-1] / 4)
    assert config.table_scale() == pytest.approx(0.1 * np.log(4) + 1)
