"""Every environment variable that zephyr reads, in one table."""

import os
from dataclasses import dataclass

from zephyr.errors import DatasetError


@dataclass(frozen=True)
class EnvVar:
    """One variable: its name, type, default and meaning."""

    name: str
    type: str
    default: str
    meaning: str


MAX_WORKERS = EnvVar(
    "ZEPHYR_MAX_WORKERS", "int", "number of CPUs", "workers of a ZephyrContext that sets none; 0 is inline"
)
SCRATCH = EnvVar(
    "ZEPHYR_SCRATCH", "path", "the system's temporary folder", "where shuffle files lie during an execution"
)

TABLE = (MAX_WORKERS, SCRATCH)


def max_workers() -> int | None:
    """Value of ZEPHYR_MAX_WORKERS.

    Raises:
        DatasetError: it is not a number, or negative.
    """
    text = os.environ.get(MAX_WORKERS.name)
    if not text:
        return None
    if not text.isdecimal():
        raise DatasetError(
            f"cannot size the pool: {MAX_WORKERS.name}={text!r}; expected a whole number, 0 or more. "
            "Unset it or fix it."
        )
    return int(text)


def scratch() -> str | None:
    """Value of ZEPHYR_SCRATCH."""
    return os.environ.get(SCRATCH.name) or None
