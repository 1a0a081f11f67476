r"""Attention kernels of vendors behind the one interface of :mod:`levanter.layers.attention`.

``cudnn`` is NVIDIA's fused attention through ``jax.nn.dot_product_attention``; ``splash`` is the Pallas kernel for
TPUs. Neither falls back: what a kernel cannot do, on the platform or with the mask at hand, is an error that says so
and names a back-end that can. ``emulate`` runs the same program where the hardware is absent (XLA's reference of the
cuDNN call, the Pallas interpreter), so that masks, groupings and scales are tested on any machine.

Shape suffixes: B batch, H query heads, G key/value heads, P queries, S keys, D head size.

References:
    Dao, FlashAttention-2, arXiv:2307.08691. Splash attention: ``jax.experimental.pallas.ops.tpu.splash_attention``.
"""

from typing import Any

import jax
import jax.numpy as jnp

from levanter._adapters.splash_attention import splash
from levanter.errors import AttentionBackendError
from levanter.layers.attention_mask import AttentionMask, positional_ids
from levanter.sharding import current_mesh

_SPLASH_LANES = 128
_SPLASH_BLOCK = 512
_CUDNN_MAX_HEAD = 256


def cudnn_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    *,
    scale: float,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    emulate: bool = False,
) -> jax.Array:
    """Attend with cuDNN's fused kernel.

    Causal masks with fixed windows run inside the kernel. Any other rule reaches it as a materialised mask, which is
    quadratic in the sequence.

    Args:
        q: Queries ``[B, H, P, D]``, float16 or bfloat16.
        k: Keys ``[B, G, S, D]``.
        v: Values ``[B, G, S, D]``.
        mask: Which keys each query sees.
        scale: Factor on the scores.
        soft_cap: Not supported; must be None.
        sinks: Not supported; must be None.
        emulate: Run XLA's reference of the same call, on any platform and dtype.

    Raises:
        AttentionBackendError: no NVIDIA GPU, another dtype, a head the kernel does not take, a cap or sinks.

    Example:
        >>> x = jnp.ones((1, 2, 4, 8))
        >>> cudnn_attention(x, x, x, AttentionMask.causal(), scale=1.0, emulate=True).shape
        (1, 2, 4, 8)
    """
    _refuse("cudnn", {"soft_cap": soft_cap, "sinks": sinks}, "use jax_flash")
    if not emulate:
        _require_platform("cudnn", "gpu")
        if q.dtype not in (jnp.float16, jnp.bfloat16):
            raise AttentionBackendError("cudnn", f"dtype={q.dtype}", "float16 or bfloat16; set compute precision to it")
        if q.shape[-1] % 8 or q.shape[-1] > _CUDNN_MAX_HEAD:
            raise AttentionBackendError("cudnn", f"head size={q.shape[-1]}", "a multiple of 8, at most 256")
    window = fixed_window(mask)
    native = is_plain_causal(mask) and window is not False and q.shape[2] == k.shape[2]
    allowed = None if native else mask.materialize(q.shape[2], k.shape[2])
    out = jax.nn.dot_product_attention(
        *(x.transpose(0, 2, 1, 3) for x in (q, k, v)),
        mask=None if allowed is None else jnp.broadcast_to(allowed, (*allowed.shape[:2], q.shape[2], k.shape[2])),
        scale=scale,
        is_causal=native,
        local_window_size=(window - 1, 0) if native and window else None,
        implementation="xla" if emulate else "cudnn",
    ).transpose(0, 2, 1, 3)
    return out if allowed is None else jnp.where(allowed.any(axis=-1, keepdims=True), out, 0.0)


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    *,
    scale: float,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    block_size: int | None = None,
    emulate: bool = False,
) -> jax.Array:
    """Attend with the TPU splash kernel.

    Args:
        q: Queries ``[B, H, P, D]``.
        k: Keys ``[B, G, S, D]``.
        v: Values ``[B, G, S, D]``.
        mask: Causal, with fixed offset and windows, and segment ids.
        scale: Factor on the scores.
        soft_cap: ``cap * tanh(score / cap)`` when set.
        sinks: One logit per query head ``[H]``.
        block_size: Queries and keys per block, a multiple of 128; None means at most 512.
        emulate: Run in the Pallas interpreter, on any platform.

    Raises:
        AttentionBackendError: no TPU, several devices, lengths that blocks do not divide, or a mask that is known only
            when the program runs.
    """
    if not emulate:
        _require_platform("splash", "tpu")
        mesh = current_mesh()
        if mesh is not None and mesh.size > 1:
            raise AttentionBackendError("splash", f"devices={mesh.size}", "one device; use jax_flash on a mesh")
    _refuse("splash", {"explicit mask": mask.explicit_mask, "prefix": mask.prefix}, "use jax_flash")
    static = isinstance(mask.causal_offset, int) and fixed_window(mask) is not False
    if not static:
        raise AttentionBackendError("splash", "traced window or offset", "fixed ones; set scan_layers=False")
    length, keys = q.shape[2], k.shape[2]
    block = block_size or min(_SPLASH_BLOCK, length, keys)
    if block % _SPLASH_LANES or length % block or keys % block:
        sizes = f"queries={length}, keys={keys}, block_size={block}"
        raise AttentionBackendError("splash", sizes, "a multiple of 128 that divides both; pad the sequence")
    window, around, ids = fixed_window(mask), mask.bidirectional_window, mask.segment_ids
    windows = [] if window is None else [(window - 1, 0 if mask.sliding_window is not None else None)]
    windows += [] if around is None else [(around, around)]
    return splash(
        q * jnp.asarray(scale, q.dtype),
        k,
        v,
        causal_offset=mask.causal_offset if mask.is_causal else None,
        windows=windows,
        segments=None if ids is None else (positional_ids(ids[0]), positional_ids(ids[1])),
        block=block,
        soft_cap=soft_cap,
        sinks=None if sinks is None else sinks.astype(jnp.float32),
        interpret=emulate,
    ).astype(v.dtype)


def is_plain_causal(mask: AttentionMask) -> bool:
    """Whether the mask is causal without offset and has no rule but windows."""
    others = (mask.explicit_mask, mask.segment_ids, mask.bidirectional_window, mask.prefix)
    plain = all(rule is None for rule in others)
    return plain and mask.is_causal and isinstance(mask.causal_offset, int) and mask.causal_offset == 0


def fixed_window(mask: AttentionMask) -> Any:
    """The smaller of the mask's backward windows: an int, None for none, False when known only at run time.

    Example:
        >>> fixed_window(AttentionMask.causal(sliding_window=4).with_lookback(3))
        3
    """
    windows = [w for w in (mask.sliding_window, mask.lookback) if w is not None]
    if not all(isinstance(w, int) for w in windows):
        return False
    return min(windows) if windows else None


def _require_platform(backend: str, platform: str) -> None:
    found = jax.default_backend()
    if found != platform:
        raise AttentionBackendError(backend, f"platform={found}", f"{platform}; use jax_flash or default here")


def _refuse(backend: str, settings: dict[str, Any], remedy: str) -> None:
    for name, value in settings.items():
        if value is not None:
            shown = "set" if hasattr(value, "shape") or hasattr(value, "array") else value
            raise AttentionBackendError(backend, f"{name}={shown}", f"none; {remedy}")
