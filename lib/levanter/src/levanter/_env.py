"""The environment variables levanter reads, in one table.

Nothing else in the package touches ``os.environ``.
"""

import os
from typing import NamedTuple


class EnvVar(NamedTuple):
    """One environment variable: its name, type, default and meaning."""

    name: str
    type: str
    default: str
    meaning: str


ENVIRONMENT: tuple[EnvVar, ...] = (
    EnvVar("RUN_ID", "str", "", "Run id when `trainer.id` is not set; part of every checkpoint path."),
    EnvVar("LEVANTER_CONFIG_DIR", "path", "", "Folder searched for configuration names that are not paths."),
    EnvVar(
        "LEVANTER_HEARTBEAT", "path", "", "File into which the trainer writes how far it is; set by the supervisor."
    ),
    EnvVar("LEVANTER_TS_CACHE_LIMIT", "bytes", "1000000000", "Cache of decoded chunks, shared by all readers."),
)


def run_id_from_environment() -> str | None:
    """Return ``RUN_ID``, or None when it is unset or empty."""
    return os.environ.get("RUN_ID") or None


def config_dir_from_environment() -> str | None:
    """Return ``LEVANTER_CONFIG_DIR``, or None when it is unset or empty."""
    return os.environ.get("LEVANTER_CONFIG_DIR") or None


def heartbeat_path_from_environment() -> str | None:
    """Return ``LEVANTER_HEARTBEAT``, or None when it is unset or empty."""
    return os.environ.get("LEVANTER_HEARTBEAT") or None


def environment_with_heartbeat(path: str) -> dict[str, str]:
    """This process's environment with ``LEVANTER_HEARTBEAT`` set, for a child."""
    return {**os.environ, "LEVANTER_HEARTBEAT": path}


def ts_cache_limit_bytes() -> int:
    """Return ``LEVANTER_TS_CACHE_LIMIT`` in bytes.

    Raises:
        ValueError: It is not a whole number of bytes.
    """
    text = os.environ.get("LEVANTER_TS_CACHE_LIMIT") or "1000000000"
    if not text.isdecimal():
        raise ValueError(
            f"cannot read LEVANTER_TS_CACHE_LIMIT={text!r}; expected a whole number of bytes. "
            "Unset it or give digits only."
        )
    return int(text)
