"""Quantise-dequantise through FP8 with delayed scaling.

The state (scale, history of largest magnitudes) travels as ordinary arguments whose cotangents are their next values.

References:
    Micikevicius et al., FP8 formats for deep learning, arXiv:2209.05433, section 3.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

E4M3 = jnp.float8_e4m3fn
E5M2 = jnp.float8_e5m2


def dtype_max(dtype: Any) -> float:
    """Return the largest finite value of an FP8 format."""
    return float(jnp.finfo(dtype).max)


def compute_scale(amax: Any, scale: Any, fp8_max: float, margin: int = 0) -> Any:
    """Return ``amax / fp8_max * 2**margin``; the old scale where ``amax`` is 0 or not finite.

    Args:
        amax: Largest magnitude seen.
        scale: Scale so far.
        fp8_max: Largest value of the format.
        margin: Powers of two of head room.
    """
    new = amax / fp8_max * 2.0**margin
    return jnp.where((amax > 0) & jnp.isfinite(amax), new, scale)


def compute_amax_history(x: Any, history: Any) -> Any:
    """Return the history with the largest magnitude of ``x`` pushed in at index 0 (after a roll by -1)."""
    return jnp.roll(history, -1).at[0].set(jnp.max(jnp.abs(x)).astype(history.dtype))


def quantize(x: Any, fp8: Any, scale: Any, compute_dtype: Any) -> Any:
    """Return ``x / scale`` clipped to the format's range and rounded to it."""
    limit = jnp.asarray(dtype_max(fp8), compute_dtype)
    return jnp.clip(x / scale.astype(compute_dtype), -limit, limit).astype(fp8)


def quantize_dequantize(x: Any, fp8: Any, scale: Any, compute_dtype: Any) -> Any:
    """Round ``x`` to the values that the format can hold at this scale."""
    return quantize(x, fp8, scale, compute_dtype).astype(compute_dtype) * scale.astype(compute_dtype)


def _step(x: Any, fp8: Any, scale: Any, history: Any, compute_dtype: Any) -> tuple[Any, Any, Any]:
    new_scale = compute_scale(jnp.max(history), scale, dtype_max(fp8))
    return quantize_dequantize(x, fp8, new_scale, compute_dtype), new_scale, compute_amax_history(x, history)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_qdq(compute_dtype: Any, x: Any, scale: Any, history: Any) -> Any:
    """Pass ``x`` through e4m3 on the way forward; gradients pass unchanged."""
    return _step(x, E4M3, scale, history, compute_dtype)[0]


def _in_forward(compute_dtype: Any, x: Any, scale: Any, history: Any) -> Any:
    out, new_scale, new_history = _step(x, E4M3, scale, history, compute_dtype)
    return out, (new_scale, new_history)


def _in_backward(compute_dtype: Any, residuals: Any, ct: Any) -> Any:
    del compute_dtype
    return ct, *residuals


in_qdq.defvjp(_in_forward, _in_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def out_qdq(compute_dtype: Any, y: Any, scale: Any, history: Any) -> Any:
    """Pass ``y`` unchanged on the way forward; its gradient goes through e5m2."""
    del compute_dtype, scale, history
    return y


def _out_forward(compute_dtype: Any, y: Any, scale: Any, history: Any) -> Any:
    del compute_dtype
    return y, (scale, history)


def _out_backward(compute_dtype: Any, residuals: Any, ct: Any) -> Any:
    scale, history = residuals
    return _step(ct, E5M2, scale, history, compute_dtype)


out_qdq.defvjp(_out_forward, _out_backward)
