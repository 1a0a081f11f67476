"""Numbers as a person would write them."""

from __future__ import annotations


def format_bytes(count: float | None) -> str:
    """Bytes in decimal units.

    Example:
        >>> format_bytes(11_210_611)
        '11.2 MB'
    """
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_seconds(seconds: float | None) -> str:
    """Wall time, in the unit a person would use.

    Example:
        >>> format_seconds(3.14159), format_seconds(125.0)
        ('3.1 s', '2 min 05 s')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
