"""The Pallas splash kernel for TPUs; importing Pallas costs a second, and only this back-end needs it."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal_offset: int | None,
    windows: Sequence[tuple[int | None, int | None]],
    segments: tuple[jax.Array, jax.Array] | None,
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
        causal_offset: Keys up to ``query + offset`` are seen; None for all.
        windows: How many keys before and after the query are seen, each None for all; all must agree.
        segments: Ids of queries ``[B or 1, P]`` and keys ``[B or 1, S]``, or None.
        block: Queries and keys per block; a multiple of 128 that divides both lengths.
        soft_cap: Cap of the scores, or None.
        sinks: One logit per query head, or None.
        interpret: Use the Pallas interpreter.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as kernels

    shape = (q.shape[2], k.shape[2])
    rule: Any = kernels.FullMask(shape)
    if causal_offset is not None:
        rule = kernels.CausalMask(shape, offset=causal_offset)
    for window in windows:
        rule = rule & kernels.LocalMask(shape, window, offset=0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: dict[str, Any] = {f"block_{name}": block for name in names}
    sizes = kernels.BlockSizes(**blocks)
    kernel: Any = kernels.make_splash_mha(
        kernels.MultiHeadMask([rule] * q.shape[1]),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=soft_cap,
        interpret=interpret,
    )
    ids = None
    if segments is not None:
        ids = kernels.SegmentIds(*(jnp.broadcast_to(x, (q.shape[0], x.shape[-1])) for x in segments))
    return jax.vmap(lambda a, b, c, own: kernel(a, b, c, segment_ids=own, sinks=sinks))(q, k, v, ids)
