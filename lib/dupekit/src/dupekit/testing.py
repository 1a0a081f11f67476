"""Test hooks: run a kernel on a chosen instruction set.

Results must not depend on the CPU; with these a test can prove it.
"""

from collections.abc import Generator
from contextlib import contextmanager

from dupekit._native import native


def simd_paths() -> list[str]:
    """Names of the instruction-set paths this CPU can run, plainest first; always starts with `scalar`.

    Example:
        >>> simd_paths()[0]
        'scalar'
    """
    return native.simd_paths()


def simd_path() -> str:
    """Name of the path in force: the widest, unless `forced_simd` says otherwise."""
    return native.simd_path()


@contextmanager
def forced_simd(path: str) -> Generator[None]:
    """Use one path, for the whole process, until the block ends.

    Args:
        path: A member of `simd_paths()`.

    Raises:
        ParameterError: When this CPU cannot run the path.

    Example:
        >>> with forced_simd("scalar"):
        ...     simd_path()
        'scalar'
    """
    before = native.simd_path()
    native.set_simd_path(path)
    try:
        yield
    finally:
        native.set_simd_path(before)
