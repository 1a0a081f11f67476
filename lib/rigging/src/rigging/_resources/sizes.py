"""Human-written sizes."""

import re

from rigging.errors import SizeParseError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?b)?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_bytes(text: str | int) -> int:
    """Return a size in bytes; every unit is binary (``"1k"`` is 1024), as schedulers read them.

    Args:
        text: Bytes as an int, or text such as ``"512m"``, ``"4g"``, ``"1.5TiB"``.
    Raises:
        SizeParseError: The text is not a size, or is negative.

    Example:
        >>> parse_bytes("4g"), parse_bytes("1.5KiB"), parse_bytes(7)
        (4294967296, 1536, 7)
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise SizeParseError(text)
    unit = 1024 ** _POWERS[match[2].lower()]
    return int(match[1]) * unit if match[1].isdigit() else int(float(match[1]) * unit)


def format_bytes(size: int) -> str:
    """Return a size that ``parse_bytes`` reads back exactly, in the largest unit that divides it.

    Example:
        >>> format_bytes(4 << 30), format_bytes(1500)
        ('4g', '1500')
    """
    for unit in ("p", "t", "g", "m", "k"):
        step = 1024 ** _POWERS[unit]
        if size and size % step == 0:
            return f"{size // step}{unit}"
    return str(size)
