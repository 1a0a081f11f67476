r"""One attention for every model: grouped queries, any mask, exact back-ends that agree to rounding.

``vanilla`` holds the scores, ``jax_flash`` does not; both run everywhere and compute the softmax in float32. ``cudnn``
and ``splash`` are kernels of GPUs and TPUs (:mod:`levanter.layers.attention_kernels`); where they cannot run they say
so. Heads come before positions in every product, the order in which CPU kernels run fastest.

Shape suffixes: B batch, H query heads, G key/value heads, R queries per group (H = G R), P queries, S keys, D head
size.

References:
    Vaswani et al., arXiv:1706.03762, section 3.2; grouped queries: Ainslie et al., arXiv:2305.13245.
"""

import enum
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from levanter.errors import ModelShapeError
from levanter.layers.attention_kernels import cudnn_attention, splash_attention
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.flash_attention import MASKED, FlashSpec, flash_attention

DEFAULT_BLOCK_SIZE = 1024


class AttentionBackend(enum.StrEnum):
    """Which kernel computes attention.

    ``default`` runs everywhere: ``jax_flash`` when the sequence fills at least two blocks, else ``vanilla``. ``nvte``,
    the name of TransformerEngine's kernel, means ``cudnn``, which that kernel is.
    """

    DEFAULT = "default"
    VANILLA = "vanilla"
    JAX_FLASH = "jax_flash"
    CUDNN = "cudnn"
    SPLASH = "splash"

    @classmethod
    def _missing_(cls, value: object) -> "AttentionBackend | None":
        return cls.CUDNN if str(value).lower() == "nvte" else None


@dataclass(frozen=True)
class AttentionSettings:
    """How scores become weights.

    Attributes:
        backend: Kernel.
        block_size: Queries and keys per flash block; None means 1,024.
        scaling_factor: Factor on the scores; None means ``1 / sqrt(D)``.
        soft_cap: ``cap * tanh(score / cap)`` when set.
        upcast: Compute the scores from float32 queries and keys.
        emulate: Run ``cudnn`` and ``splash`` without their hardware, slowly; for tests.
    """

    backend: AttentionBackend = AttentionBackend.DEFAULT
    block_size: int | None = None
    scaling_factor: float | None = None
    soft_cap: float | None = None
    upcast: bool = False
    emulate: bool = False


def dot_product_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask | None,
    settings: AttentionSettings | None = None,
    *,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Attend.

    Args:
        q: Queries ``[B, H, P, D]``.
        k: Keys ``[B, G, S, D]``; ``G`` divides ``H``.
        v: Values ``[B, G, S, D]``.
        mask: Which keys each query sees; None lets it see all. A query that sees none gets zeros.
        settings: Kernel, block size and score transforms.
        sinks: One logit per query head ``[H]`` that takes weight and gives nothing; None for none.

    Returns:
        ``[B, H, P, D]`` in the dtype of ``v``.

    Raises:
        ModelShapeError: heads do not group, or flash blocks do not divide the sequence.
        MaskError: the mask's axes do not fit.
        AttentionBackendError: the kernel cannot run here, or not with this mask.

    Example:
        >>> x = jnp.ones((1, 2, 3, 4))
        >>> dot_product_attention(x, x, x, AttentionMask.causal()).shape
        (1, 2, 3, 4)
    """
    settings = settings or AttentionSettings()
    mask = mask if mask is not None else AttentionMask()
    heads, groups = q.shape[1], k.shape[1]
    if heads % groups:
        raise ModelShapeError(
            f"cannot group heads: num_heads={heads}, num_kv_heads={groups}; expected a multiple.", name="num_heads"
        )
    if settings.upcast:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    scale = settings.scaling_factor if settings.scaling_factor is not None else 1.0 / math.sqrt(q.shape[-1])
    mask.check_fits(q.shape[0], heads, q.shape[2], k.shape[2])
    if settings.backend in (AttentionBackend.CUDNN, AttentionBackend.SPLASH):
        shared = {"scale": scale, "soft_cap": settings.soft_cap, "sinks": sinks, "emulate": settings.emulate}
        if settings.backend == AttentionBackend.CUDNN:
            return cudnn_attention(q, k, v, mask, **shared)
        return splash_attention(q, k, v, mask, **shared, block_size=settings.block_size)
    block = settings.block_size or DEFAULT_BLOCK_SIZE
    if _use_flash(settings.backend, q.shape[2], k.shape[2], block):
        spec = FlashSpec(block, block, scale, settings.soft_cap)
        return flash_attention(q, k, v, mask, spec, sinks).astype(v.dtype)
    return _vanilla(q, k, v, mask, scale, settings.soft_cap, sinks)


def _use_flash(backend: AttentionBackend, queries: int, keys: int, block: int) -> bool:
    fits = queries % block == 0 and keys % block == 0
    if backend == AttentionBackend.JAX_FLASH and not fits:
        raise ModelShapeError(
            f"cannot split into flash blocks: queries={queries}, keys={keys}, block_size={block}; "
            "expected the block to divide both. Set flash_attention_block_size.",
            name="flash_attention_block_size",
        )
    return backend == AttentionBackend.JAX_FLASH or (
        backend == AttentionBackend.DEFAULT and fits and queries >= 2 * block
    )


def _vanilla(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    scale: float,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    batch, heads, length, size = q.shape
    groups = k.shape[1]
    grouped = heads != groups
    if grouped:
        q = q.reshape(batch, groups, heads // groups, length, size)
    scores = jnp.einsum("bgrqd,bgkd->bgrqk" if grouped else "bhqd,bhkd->bhqk", q * scale, k).astype(jnp.float32)
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    allowed = mask.materialize(length, k.shape[2])
    if allowed is not None:
        if grouped:
            split = allowed.shape[1] > 1
            shape = (groups, heads // groups) if split else (1, 1)
            allowed = allowed.reshape(allowed.shape[0], *shape, *allowed.shape[2:])
        scores = jnp.where(allowed, scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1) if sinks is None else _softmax_with_sinks(scores, sinks)
    if allowed is not None and not _sees_itself(mask):
        weights = jnp.where(allowed, weights, 0.0)
    weights = weights.astype(v.dtype)
    out = jnp.einsum("bgrqk,bgkd->bgrqd" if grouped else "bhqk,bhkd->bhqd", weights, v)
    return out.reshape(batch, heads, length, size)


def _softmax_with_sinks(scores: jax.Array, sinks: jax.Array) -> jax.Array:
    """Softmax over keys and one sink per head; the sink's weight is dropped."""
    sink = sinks.astype(scores.dtype).reshape(1, *scores.shape[1:-2], 1, 1)
    top = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), sink))
    weights = jnp.exp(scores - top)
    return weights / (weights.sum(axis=-1, keepdims=True) + jnp.exp(sink - top))


def _sees_itself(mask: AttentionMask) -> bool:
    """Whether every query surely sees at least one key, so that no row of the softmax is empty."""
    plain_offset = isinstance(mask.causal_offset, int) and mask.causal_offset >= 0
    return mask.explicit_mask is None and mask.segment_ids is None and plain_offset
