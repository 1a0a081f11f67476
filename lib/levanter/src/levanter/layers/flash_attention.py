r"""Blockwise attention with an online softmax: exact, and linear in memory.

The score matrix is the only quadratic object in attention, and it is never needed whole. For each block of queries we
walk over blocks of keys, keeping a running maximum ``m``, a running normaliser ``l`` and a running output; key blocks
that the mask hides entirely are skipped. The forward pass saves only the output ``o`` and ``lse = m + log l``; the
backward pass recomputes each block of probabilities from them.

Shape suffixes: B batch, H query heads, G key/value heads, P queries, S keys, D head size.

References:
    Dao et al., FlashAttention, arXiv:2205.14135, algorithms 1 and 4; Rabe and Staats, arXiv:2112.05682.
    Backward: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 2.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from levanter.layers.attention_mask import AttentionMask

MASKED = -1e30


class FlashSpec(NamedTuple):
    """Static settings.

    Attributes:
        block_q: Queries per block; divides P.
        block_k: Keys per block; divides S.
        scale: Factor on the scores.
        soft_cap: ``cap * tanh(score / cap)`` when set.
    """

    block_q: int
    block_k: int
    scale: float
    soft_cap: float | None


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    spec: FlashSpec,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Attend blockwise.

    Args:
        q: Queries ``[B, H, P, D]``.
        k: Keys ``[B, G, S, D]``, ``G`` divides ``H``.
        v: Values ``[B, G, S, D]``.
        mask: Which keys each query sees. A query that sees none gets zeros.
        spec: Block sizes and score transforms.
        sinks: One logit per query head ``[H]`` that joins the normaliser and carries no value.

    Returns:
        ``[B, H, P, D]`` in the dtype of ``q``; equal to the plain softmax form up to float32 rounding.
    """
    batch, heads, length, size = q.shape
    groups = k.shape[1]
    q_grouped = q.reshape(batch, groups, heads // groups, length, size)
    arrays, static = _split_mask(mask)
    grouped_sinks = None if sinks is None else sinks.astype(jnp.float32).reshape(groups, heads // groups)
    return _flash(q_grouped, k, v, grouped_sinks, arrays, static, spec).reshape(q.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _flash(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, arrays: Any, static: Any, spec: FlashSpec
) -> jax.Array:
    return _forward(q, k, v, sinks, _join_mask(arrays, static), spec)[0]


def _flash_fwd(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, arrays: Any, static: Any, spec: FlashSpec
) -> tuple:
    out, lse = _forward(q, k, v, sinks, _join_mask(arrays, static), spec)
    return out, (q, k, v, sinks, arrays, out, lse)


def _flash_bwd(static: Any, spec: FlashSpec, saved: tuple, d_out: jax.Array) -> tuple:
    q, k, v, sinks, arrays, out, lse = saved
    delta = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)
    dq, dk, dv = _backward(q, k, v, _join_mask(arrays, static), spec, lse, delta, d_out)
    d_sinks = None
    if sinks is not None:
        # A sink's value is zero, so only the normaliser feels it: d lse / d sink = p, d out / d lse = -out.
        d_sinks = -jnp.sum(jnp.exp(sinks[None, :, :, None] - lse) * delta, axis=(0, 3))
    return dq, dk, dv, d_sinks, jax.tree.map(_no_gradient, arrays)


_flash.defvjp(_flash_fwd, _flash_bwd)


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, mask: AttentionMask, spec: FlashSpec
) -> tuple:
    """Return the output ``[B, G, R, P, D]`` and ``lse`` ``[B, G, R, P]``, both by blocks of queries."""
    keys = k.shape[2]

    def query_block(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = index * spec.block_q
        q_block = jax.lax.dynamic_slice_in_dim(q, start, spec.block_q, axis=3)
        shape = q_block.shape[:-1]

        def key_block(j: jax.Array, carry: tuple) -> tuple:
            m, l, acc = carry
            k_block, v_block = (jax.lax.dynamic_slice_in_dim(a, j * spec.block_k, spec.block_k, axis=2) for a in (k, v))
            scores, allowed = _scores(q_block, k_block, mask, start, j * spec.block_k, spec)
            new_m = jnp.maximum(m, scores.max(axis=-1))
            p = jnp.where(allowed, jnp.exp(scores - new_m[..., None]), 0.0)
            shrink = jnp.exp(m - new_m)
            new_acc = acc * shrink[..., None] + jnp.einsum("bgrqk,bgkd->bgrqd", p.astype(v.dtype), v_block)
            return new_m, l * shrink + p.sum(axis=-1), new_acc

        zero = jnp.zeros(shape, jnp.float32)
        begin = (zero + MASKED, zero, jnp.zeros(q_block.shape, jnp.float32))
        m, l, acc = jax.lax.fori_loop(*_block_bounds(mask, start, spec, keys), key_block, begin)
        if sinks is not None:
            sink = sinks[None, :, :, None]
            new_m = jnp.maximum(m, sink)
            shrink = jnp.exp(m - new_m)
            m, l, acc = new_m, l * shrink + jnp.exp(sink - new_m), acc * shrink[..., None]
        safe = jnp.where(l == 0, 1.0, l)
        return (acc / safe[..., None]).astype(q.dtype), m + jnp.log(safe)

    blocks = jax.lax.map(query_block, jnp.arange(q.shape[3] // spec.block_q))
    return _unblock(blocks[0], 3), _unblock(blocks[1], 3)


def _backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    spec: FlashSpec,
    lse: jax.Array,
    delta: jax.Array,
    d_out: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = k.shape[2]

    def query_block(carry: tuple, index: jax.Array) -> tuple[tuple, jax.Array]:
        start = index * spec.block_q
        q_block, do_block = (jax.lax.dynamic_slice_in_dim(a, start, spec.block_q, axis=3) for a in (q, d_out))
        lse_block, delta_block = (jax.lax.dynamic_slice_in_dim(a, start, spec.block_q, axis=3) for a in (lse, delta))

        def key_block(j: jax.Array, inner: tuple) -> tuple:
            dq, dk, dv = inner
            at = j * spec.block_k
            k_block, v_block = (jax.lax.dynamic_slice_in_dim(a, at, spec.block_k, axis=2) for a in (k, v))
            scores, allowed = _scores(q_block, k_block, mask, start, at, spec)
            p = jnp.where(allowed, jnp.exp(scores - lse_block[..., None]), 0.0)
            d_p = jnp.einsum("bgrqd,bgkd->bgrqk", do_block, v_block).astype(jnp.float32)
            d_s = p * (d_p - delta_block[..., None])
            if spec.soft_cap is not None:
                d_s = d_s * (1.0 - jnp.square(jnp.where(allowed, scores, 0.0) / spec.soft_cap))
            d_s = (d_s * spec.scale).astype(q.dtype)
            dv = _add_at(dv, jnp.einsum("bgrqk,bgrqd->bgkd", p.astype(v.dtype), do_block), at)
            dk = _add_at(dk, jnp.einsum("bgrqk,bgrqd->bgkd", d_s, q_block), at)
            return dq + jnp.einsum("bgrqk,bgkd->bgrqd", d_s, k_block), dk, dv

        begin = (jnp.zeros(q_block.shape, jnp.float32), *carry)
        dq, dk, dv = jax.lax.fori_loop(*_block_bounds(mask, start, spec, keys), key_block, begin)
        return (dk, dv), dq.astype(q.dtype)

    zeros = (jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32))
    (dk, dv), dq = jax.lax.scan(query_block, zeros, jnp.arange(q.shape[3] // spec.block_q))
    return _unblock(dq, 3), dk.astype(k.dtype), dv.astype(v.dtype)


def _scores(
    q_block: jax.Array, k_block: jax.Array, mask: AttentionMask, q_start: Any, k_start: Any, spec: FlashSpec
) -> tuple[jax.Array, jax.Array]:
    """Masked float32 scores ``[B, G, R, q, k]`` and where they are allowed."""
    scores = jnp.einsum("bgrqd,bgkd->bgrqk", q_block, k_block).astype(jnp.float32) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * jnp.tanh(scores / spec.soft_cap)
    allowed = mask.block(q_start, spec.block_q, k_start, spec.block_k)
    if allowed is None:
        return scores, jnp.ones((1, 1, 1, 1, 1), bool)
    batch, heads = allowed.shape[:2]
    groups, repeat = scores.shape[1:3]
    shape = (batch, groups, repeat) if heads > 1 else (batch, 1, 1)
    allowed = allowed.reshape(*shape, *allowed.shape[2:])
    return jnp.where(allowed, scores, MASKED), allowed


def _block_bounds(mask: AttentionMask, start: Any, spec: FlashSpec, keys: int) -> tuple[Any, Any]:
    lo, hi = mask.key_range(start, spec.block_q, keys)
    lo = jnp.clip(lo, 0, keys) // spec.block_k
    hi = -(-jnp.clip(hi, 0, keys) // spec.block_k)
    return jnp.asarray(lo, jnp.int32), jnp.maximum(jnp.asarray(hi, jnp.int32), jnp.asarray(lo, jnp.int32))


def _add_at(target: jax.Array, block: jax.Array, at: Any) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(target, at, block.shape[2], axis=2)
    return jax.lax.dynamic_update_slice_in_dim(target, old + block.astype(target.dtype), at, axis=2)


def _unblock(blocks: jax.Array, axis: int) -> jax.Array:
    """``[n, ..., block, ...] -> [..., n * block, ...]`` at ``axis`` of the result."""
    moved = jnp.moveaxis(blocks, 0, axis)
    shape = moved.shape
    return moved.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _split_mask(mask: AttentionMask) -> tuple[Any, Any]:
    """Split a mask into its arrays and a hashable rest, the form custom gradients need."""
    leaves, treedef = jax.tree.flatten(mask)
    arrays = tuple(leaf for leaf in leaves if isinstance(leaf, jax.Array))
    static = (treedef, tuple(None if isinstance(leaf, jax.Array) else leaf for leaf in leaves))
    return arrays, static


def _join_mask(arrays: Any, static: Any) -> AttentionMask:
    treedef, pattern = static
    remaining = iter(arrays)
    return jax.tree.unflatten(treedef, [next(remaining) if leaf is None else leaf for leaf in pattern])


def _no_gradient(array: jax.Array) -> Any:
    return jnp.zeros(array.shape, jax.dtypes.float0)
