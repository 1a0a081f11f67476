"""TOML text; the parser is loaded with the first text, as few need it."""

from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML document.

    Raises:
        ValueError: It is no TOML.
    """
    import tomllib

    return tomllib.loads(text)
