"""Where the artifact store is, and which region this machine is in.

``MARIN_PREFIX`` names the store; without it the store is the folder ``marin_store`` in the current directory, so
everything runs with no server and no account.
"""

import os
import re

from rigging import _env

_REGION = re.compile(r"(?:^|[-_.])(?P<region>[a-z]{2,9}-(?:[a-z]+)-?\d)(?:$|[-_.])")
_DEFAULT_FOLDER = "marin_store"


def marin_prefix() -> str:
    """Return the root of the artifact store: ``MARIN_PREFIX``, or the absolute path of ``./marin_store``.

    A local path comes back absolute; a URL comes back without a slash at the end.
    """
    value = _env.PREFIX.get() or _DEFAULT_FOLDER
    if "://" in value:
        return value.rstrip("/")
    return os.path.abspath(os.path.expanduser(value))


def region_from_prefix(prefix: str) -> str | None:
    """Return the region that a bucket's name ends in or contains; None for local paths and nameless buckets.

    Example:
        >>> region_from_prefix("gs://example-us-central2/runs"), region_from_prefix("/tmp/store")
        ('us-central2', None)
    """
    if "://" not in prefix:
        return None
    bucket = prefix.partition("://")[2].partition("/")[0]
    match = _REGION.search(bucket)
    return match["region"] if match else None


def marin_region() -> str | None:
    """Return the region of this machine: ``MARIN_REGION``, else the one in the prefix's bucket name, else None."""
    return _env.REGION.get() or region_from_prefix(marin_prefix())
