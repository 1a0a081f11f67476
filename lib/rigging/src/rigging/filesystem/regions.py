"""Where a bucket is, where this machine is, and whether the two are the same place.

Reading across regions is slow and billed by the byte, so everything that moves data asks here first. Nothing is looked
up over the network unless it is sure to be quick: the metadata server is asked only on a machine that says that it is
Google's (or where ``GCE_METADATA_HOST`` names one), once a process.
"""

import functools
import re
from typing import Final

from rigging import _env
from rigging._adapters.http_get import get_bytes
from rigging.filesystem._google_credentials import runs_on_google

_REGION: Final = re.compile(r"(?:^|[-_.])(?P<region>[a-z]{2,9}-(?:[a-z]+)-?\d)(?:$|[-_.])")
_MULTI_REGIONS: Final = {"us": ("us-", "northamerica-"), "eu": ("europe-", "eu-"), "asia": ("asia-", "ap-")}
_METADATA_TIMEOUT_S: Final = 2.0
# Without this header in the answer it is somebody else's server, a captive portal for example.
_FLAVOR: Final = {"Metadata-Flavor": "Google"}


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


def regions_match(first: str, second: str) -> bool:
    """Tell whether two regions are one place: equal, or one a multi-region that contains the other.

    Example:
        >>> regions_match("us-central2", "US"), regions_match("us-east1", "us-west4")
        (True, False)
    """
    first, second = first.lower(), second.lower()
    if first == second:
        return True
    return any(other.startswith(_MULTI_REGIONS.get(one, ())) for one, other in ((first, second), (second, first)))


def region_from_metadata(host: str | None = None, timeout_s: float = _METADATA_TIMEOUT_S) -> str | None:
    """Ask the metadata server which region this machine is in.

    Args:
        host: ``host[:port]`` of the server; default the well-known name.
        timeout_s: Seconds to wait for it.
    Returns:
        Such as ``us-central2``; None when nobody answers or the answer is no zone.
    """
    url = f"http://{host or 'metadata.google.internal'}/computeMetadata/v1/instance/zone"
    try:
        answer = get_bytes(url, timeout_s=timeout_s, limit_bytes=1000, headers=_FLAVOR, wanted=_FLAVOR)
    except OSError:
        return None
    text = answer.decode("ascii", "replace").strip()
    match = re.fullmatch(r"projects/\d+/zones/([a-z]+-[a-z]+\d+)-[a-z]", text)
    return match[1] if match else None


@functools.cache
def _region_from_machine() -> str | None:
    host = _env.METADATA_HOST.get()
    if host is None and not runs_on_google():
        return None
    return region_from_metadata(host)


def machine_region() -> str | None:
    """Return the region of this machine: ``MARIN_REGION``, else what the metadata server says, else None."""
    return _env.REGION.get() or _region_from_machine()


def reset_region_cache() -> None:
    """Forget what the metadata server said; for tests and forked images that move."""
    _region_from_machine.cache_clear()
