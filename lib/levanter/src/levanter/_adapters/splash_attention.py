"""The Pallas splash kernel for TPUs; importing Pallas costs a second, and only this back-end needs it."""

from typing import Any

import jax
import jax.numpy as jnp

from levanter.layers.attention_mask import AttentionMask, positional_ids


def splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    *,
    window: int | None,
    block: int,
    soft_cap: float | None,
    sinks: jax.Array | None,
    interpret: bool,
) -> jax.Array:
    """Run the kernel.

    Args:
        q: Scaled queries ``[B, H, P, D]``.
        k: Keys ``[B, G, S, D]``.
        v: Values ``[B, G, S, D]``.
        mask: Causal, windows and segments; all but the segments known now.
        window: The smallest backward window.
        block: Queries and keys per block; a multiple of 128 that divides both lengths.
        soft_cap: Cap of the scores, or None.
        sinks: One logit per query head, or None.
        interpret: Use the Pallas interpreter.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as kernels

    shape = (q.shape[2], k.shape[2])
    rule: Any = kernels.FullMask(shape)
    if mask.is_causal:
        rule = kernels.CausalMask(shape, offset=mask.causal_offset)
    if window is not None:
        ahead = 0 if mask.sliding_window is not None else None
        rule = rule & kernels.LocalMask(shape, (window - 1, ahead), offset=0)
    if mask.bidirectional_window is not None:
        rule = rule & kernels.LocalMask(shape, (mask.bidirectional_window, mask.bidirectional_window), offset=0)
    kernel = kernels.make_splash_mha(
        kernels.MultiHeadMask([rule] * q.shape[1]),
        block_sizes=kernels.BlockSizes(*[block] * 8),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=soft_cap,
        interpret=interpret,
    )
    segments = None
    if mask.segment_ids is not None:
        ids = [positional_ids(array) for array in mask.segment_ids]
        segments = kernels.SegmentIds(*(jnp.broadcast_to(x, (q.shape[0], x.shape[-1])) for x in ids))
    return jax.vmap(lambda a, b, c, ids: kernel(a, b, c, segment_ids=ids, sinks=sinks))(q, k, v, segments)
