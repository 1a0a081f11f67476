"""Attention: masks are conjunctions, back-ends agree, windows count like Hugging Face's."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.errors import AttentionBackendError, MaskError, ModelShapeError
from levanter.layers.attention import AttentionBackend, AttentionSettings, dot_product_attention
from levanter.layers.attention_kernels import is_plain_causal
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
    "prefix": AttentionMask.prefix_lm(jnp.asarray([3, 5])),
    "lookback": AttentionMask.prefix_lm(4).with_lookback(3),
}


def whole(mask: AttentionMask, length: int = P) -> np.ndarray:
    allowed = mask.materialize(length, length)
    shape = (2, 1, length, length)
    return np.ones(shape, bool) if allowed is None else np.broadcast_to(allowed, shape)


def reference(q, k, v, mask, cap=None, sinks=None):
    """Softmax attention in float64 NumPy, rows without keys give zeros."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // k.shape[1], axis=1) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    weights = np.where(whole(mask, q.shape[2]), np.exp(scores), 0.0)
    total = weights.sum(-1, keepdims=True)
    total = total if sinks is None else total + np.exp(np.asarray(sinks, np.float64))[:, None, None]
    return (weights / np.where(total == 0, 1, total)) @ v


def inputs(groups: int = 2, length: int = P):
    rng = np.random.default_rng(3)
    shapes = [(2, 4, length, 8), (2, groups, length, 8), (2, groups, length, 8)]
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
        two_ids = a.segment_ids is not None and b.segment_ids is not None
        assert two_ids or (a.is_causal and b.is_causal and a.causal_offset != b.causal_offset)
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


def test_a_causal_mask_handed_to_a_compiled_program_is_still_known_to_be_causal():
    traced = []

    @jax.jit
    def look(mask):
        traced.append(is_plain_causal(mask))
        return mask.materialize(P, P)

    assert np.array_equal(look(AttentionMask.causal()), whole(MASKS["causal"])[:1])
    assert np.array_equal(look(AttentionMask.causal(offset=2)), whole(MASKS["offset"])[:1])
    assert np.array_equal(look(AttentionMask.causal(offset=jnp.int32(2))), whole(MASKS["offset"])[:1])
    assert traced == [True, False, False]


LONG = 128
LONG_SEGMENTS = hax.named(np.repeat([[0, 1], [0, 2]], LONG // 2, axis=1), (Axis("batch", 2), Axis("position", LONG)))
LONG_MASKS = {
    "causal": AttentionMask.causal(),
    "window": AttentionMask.causal(sliding_window=40),
    "lookback": AttentionMask.causal().with_lookback(40),
    "segments": AttentionMask.causal(offset=3).with_segment_ids(LONG_SEGMENTS),
}
CAPPED = ("causal", "explicit", "window")
SINKING = ("causal", "segments", "prefix")


def agree(backend: AttentionBackend, mask: AttentionMask, name: str, length: int, block: int) -> None:
    """A back-end has float64's values, and vanilla's gradients for queries, keys, values and sinks."""
    fused = backend == AttentionBackend.CUDNN  # takes neither caps nor sinks
    cap = 2.0 if name in CAPPED and not fused else None
    q, k, v = inputs(length=length)
    sinks = jnp.asarray([0.5, -1.0, 2.0, 0.0]) if name in SINKING and not fused else None
    pull = jnp.asarray(np.random.default_rng(5).normal(size=q.shape), jnp.float32)

    def run(own: AttentionBackend):
        settings_ = AttentionSettings(backend=own, block_size=block, soft_cap=cap, emulate=True)
        attend = lambda q, k, v, s: dot_product_attention(q, k, v, mask, settings_, sinks=s)  # noqa: E731
        which = (0, 1, 2) if sinks is None else (0, 1, 2, 3)
        gradient = jax.grad(lambda *a: jnp.sum(pull * attend(*a)), which)
        return jax.jit(lambda *a: (attend(*a), gradient(*a)))(q, k, v, sinks)

    value, gradient = run(backend)
    np.testing.assert_allclose(value, reference(q, k, v, mask, cap, sinks), atol=2e-5)
    for ours, plain in zip(gradient, run(AttentionBackend.VANILLA)[1], strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-4)


@pytest.mark.parametrize("name", sorted(MASKS))
@pytest.mark.parametrize("backend", [AttentionBackend.VANILLA, AttentionBackend.JAX_FLASH, AttentionBackend.CUDNN])
def test_every_backend_has_the_values_of_float64_and_equal_gradients(name, backend):
    agree(backend, MASKS[name], name, P, 4)


@pytest.mark.parametrize("name", sorted(LONG_MASKS))
def test_the_tpu_kernel_in_the_interpreter_agrees_too(name):
    agree(AttentionBackend.SPLASH, LONG_MASKS[name], name, LONG, 128)


def test_kernels_without_their_hardware_say_so_and_fall_back_to_nothing():
    q, k, v = inputs(length=LONG)
    for name, platform in (("cudnn", "gpu"), ("splash", "tpu"), ("nvte", "gpu")):
        with pytest.raises(AttentionBackendError, match=f"platform=cpu; expected {platform}"):
            dot_product_attention(q, k, v, None, AttentionSettings(backend=AttentionBackend(name)))
    capped = AttentionSettings(backend=AttentionBackend.CUDNN, soft_cap=5.0, emulate=True)
    with pytest.raises(AttentionBackendError, match=r"soft_cap=5.0.*jax_flash"):
        dot_product_attention(q, k, v, None, capped)
    tpu = AttentionSettings(backend=AttentionBackend.SPLASH, emulate=True)
    with pytest.raises(AttentionBackendError, match="prefix"):
        dot_product_attention(q, k, v, AttentionMask.prefix_lm(3), tpu)
    with pytest.raises(AttentionBackendError, match="scan_layers=False"):
        jax.jit(lambda w: dot_product_attention(q, k, v, AttentionMask.causal().with_lookback(w), tpu))(3)
    with pytest.raises(AttentionBackendError, match="block_size=12"):
        dot_product_attention(*inputs(), None, tpu)


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (AttentionMask.explicit(EXPLICIT), "position=12; expected position=8"),
        (AttentionMask.causal().with_segment_ids(SEGMENTS), "position=12; expected position=8"),
        (AttentionMask.prefix_lm(jnp.zeros(3, jnp.int32)), "batch=2"),
        (AttentionMask.explicit(hax.named(np.ones((3, 8, 8), bool), ("heads", "position", "key_position"))), "heads=3"),
    ],
)
def test_masks_that_do_not_fit_are_refused_with_both_sizes(mask, shown):
    with pytest.raises(MaskError, match=shown):
        dot_product_attention(*inputs(length=8), mask)


def test_windows_of_no_key_are_refused():
    for bad in ({"sliding_window": 0}, {"lookback": 0}, {"bidirectional_window": -1}, {"sliding_window": -3}):
        with pytest.raises(MaskError, match=f"={next(iter(bad.values()))}; expected"):
            AttentionMask(**bad)
    with pytest.raises(MaskError, match="prefix_lm"):
        AttentionMask(prefix=3)


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
