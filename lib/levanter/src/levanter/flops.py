"""Counting floating-point operations, and what fraction of the hardware they use.

One multiply-add is two operations. ``full`` counts every score of attention, ``causal`` half of them; frameworks
differ, so the convention is always logged beside the number.

References:
    Chowdhery et al., PaLM, arXiv:2204.02311, appendix B (model FLOPs utilisation).
"""

import time

import jax
import jax.numpy as jnp

from levanter.errors import ConfigError

# Dense bfloat16 peaks in FLOP/s by (part of) the device kind JAX reports.
DEVICE_PEAK_FLOPS = {
    "A100": 312e12,
    "H100": 989.5e12,
    "H200": 989.5e12,
    "B200": 2250e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}


def lm_flops_per_token(
    *,
    hidden_dim: int,
    intermediate_dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    vocab_size: int,
    context_length: int,
    convention: str = "full",
) -> float:
    """Forward FLOPs per token of a gated transformer.

    Args:
        hidden_dim: Residual stream.
        intermediate_dim: MLP width.
        num_layers: Blocks.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Size of a head.
        vocab_size: Outputs of the head.
        context_length: Keys each query is charged for.
        convention: ``full`` or ``causal``.

    Returns:
        FLOPs; multiply by three for a training step.

    Raises:
        ConfigError: an unknown convention.

    Example:
        >>> lm_flops_per_token(hidden_dim=2, intermediate_dim=4, num_layers=1, num_heads=1, num_kv_heads=1,
        ...                    head_dim=2, vocab_size=3, context_length=1)
        103.0
    """
    check_convention(convention)
    mlp = 6 * hidden_dim * intermediate_dim
    qkv = 2 * hidden_dim * head_dim * (num_heads + 2 * num_kv_heads)
    out = 2 * num_heads * head_dim * hidden_dim
    scores = (4 * num_heads * head_dim + 3 * num_heads) * context_length
    if convention == "causal":
        scores = scores / 2
    return float(num_layers * (mlp + qkv + out + scores) + 2 * hidden_dim * vocab_size)


def check_convention(convention: str) -> None:
    """Accept ``full`` or ``causal``.

    Raises:
        ConfigError: anything else.
    """
    if convention not in ("full", "causal"):
        raise ConfigError(f"unknown convention {convention!r}; expected full or causal.", key="flops_convention")


def device_peak_flops(device: jax.Device | None = None) -> tuple[str, float]:
    """Name and peak FLOP/s of a device; a CPU is calibrated with a matrix product and labelled so.

    Returns:
        ``(kind, flops)``; ``flops`` is 0 for an unknown accelerator.
    """
    device = device or jax.devices()[0]
    if device.platform == "cpu":
        return "cpu(calibrated)", _calibrate_cpu()
    for name, peak in DEVICE_PEAK_FLOPS.items():
        if name.lower() in device.device_kind.lower():
            return device.device_kind, peak
    return device.device_kind, 0.0


def _calibrate_cpu(size: int = 768, repeats: int = 4) -> float:
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(lambda a: a @ a)
    multiply(x).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        multiply(x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
