"""Peak dense throughput of accelerators, from the vendors' data sheets.

Figures are dense (no structured sparsity), per device: one GPU, one TPU chip. GB200 and GB300 count one GPU of the
pair.

References:
    NVIDIA data sheets for V100, T4, A10, L4, A100, H100 SXM, H200, B100 and the GB200/GB300 NVL72 racks; AWS G5 page
    for A10G; Google Cloud TPU system architecture pages for v2 to v6e.
"""

from typing import Final

T: Final = 1e12

PEAK_FLOPS: Final[dict[str, dict[str, float]]] = {
    "V100": {"fp16": 125 * T, "fp32": 15.7 * T},
    "T4": {"fp16": 65 * T, "int8": 130 * T, "fp32": 8.1 * T},
    "A10": {"bf16": 125 * T, "fp16": 125 * T, "tf32": 62.5 * T, "int8": 250 * T, "fp32": 31.2 * T},
    "A10G": {"bf16": 70 * T, "fp16": 70 * T, "tf32": 35 * T, "int8": 140 * T, "fp32": 35 * T},
    "L4": {"bf16": 121 * T, "fp16": 121 * T, "tf32": 60 * T, "fp8": 242.5 * T, "int8": 242.5 * T, "fp32": 30.3 * T},
    "A100-40G": {"bf16": 312 * T, "fp16": 312 * T, "tf32": 156 * T, "int8": 624 * T, "fp32": 19.5 * T},
    "A100-80G": {"bf16": 312 * T, "fp16": 312 * T, "tf32": 156 * T, "int8": 624 * T, "fp32": 19.5 * T},
    "H100": {
        "bf16": 989.4 * T,
        "fp16": 989.4 * T,
        "tf32": 494.7 * T,
        "fp8": 1978.9 * T,
        "int8": 1978.9 * T,
        "fp32": 67 * T,
    },
    "H200": {
        "bf16": 989.4 * T,
        "fp16": 989.4 * T,
        "tf32": 494.7 * T,
        "fp8": 1978.9 * T,
        "int8": 1978.9 * T,
        "fp32": 67 * T,
    },
    "B100": {"bf16": 1750 * T, "fp16": 1750 * T, "tf32": 900 * T, "fp8": 3500 * T, "int8": 3500 * T, "fp32": 60 * T},
    "GB200": {"bf16": 2500 * T, "fp16": 2500 * T, "tf32": 1250 * T, "fp8": 5000 * T, "int8": 5000 * T, "fp32": 80 * T},
    "GB300": {"bf16": 2500 * T, "fp16": 2500 * T, "tf32": 1250 * T, "fp8": 5000 * T, "fp32": 80 * T},
    "v2": {"bf16": 45 * T},
    "v3": {"bf16": 123 * T},
    "v4": {"bf16": 275 * T, "int8": 275 * T},
    "v5litepod": {"bf16": 197 * T, "int8": 394 * T},
    "v5p": {"bf16": 459 * T, "int8": 918 * T},
    "v6e": {"bf16": 918 * T, "int8": 1836 * T},
}


def device_flops(variant: str, dtype: str = "bf16") -> float | None:
    """Return the peak dense rate of one device in operations per second, or None when it is not in the table.

    Args:
        variant: GPU name (``"H100"``) or TPU type (``"v4-8"``, ``"v5p"``).
        dtype: ``bf16``, ``fp16``, ``tf32``, ``fp32``, ``fp8`` or ``int8``.

    Example:
        >>> device_flops("v4-8"), device_flops("abacus")
        (275000000000000.0, None)
    """
    table = PEAK_FLOPS.get(variant) or PEAK_FLOPS.get(variant.partition("-")[0])
    return None if table is None else table.get(dtype)
