"""Make sure before a job starts that what it reads lies in its own region.

A training job that reads its data across an ocean works, slowly and dearly; so its configuration is searched for bucket
URLs (of either store) first. The location of a bucket is what the cluster configuration or its name says, else what its
store answers.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rigging.errors import ConfigError, CrossRegionPathError
from rigging.filesystem._adapters.gcs import gcs_location
from rigging.filesystem._adapters.s3 import s3_location
from rigging.filesystem.prefix import marin_region
from rigging.filesystem.regions import regions_match
from rigging.filesystem.transfer_budget import bucket_region

_SCHEMES: Final = ("gs://", "s3://")
DEFAULT_SKIP: Final = ("train_urls", "validation_urls")


def collect_gcs_paths(obj: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield ``(where in the configuration, URL)`` for each bucket URL in nested dicts, lists and dataclasses.

    Args:
        obj: The configuration.
        prefix: Where it stands itself.

    Example:
        >>> list(collect_gcs_paths({"data": ["gs://example-bucket/a", "/local"], "lr": 0.1}))
        [('data.0', 'gs://example-bucket/a')]
    """
    if hasattr(obj, "__fspath__"):
        obj = str(obj)  # before dataclasses, as a StoragePath is one
    if isinstance(obj, str):
        if obj.startswith(_SCHEMES):
            yield prefix, obj
        return
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        items: Any = ((field.name, getattr(obj, field.name)) for field in dataclasses.fields(obj))
    elif isinstance(obj, Mapping):
        items = obj.items()
    elif isinstance(obj, list | tuple | set | frozenset):
        items = enumerate(obj)
    else:
        return
    for key, value in items:
        yield from collect_gcs_paths(value, f"{prefix}.{key}" if prefix else str(key))


@functools.lru_cache(maxsize=1024)
def _ask_location(scheme: str, bucket: str) -> str | None:
    return gcs_location(bucket) if scheme == "gs" else s3_location(bucket)


def get_bucket_location(url: str) -> str | None:
    """Return the region of a bucket in lower case, asking its store where nothing else tells; None for a local path.

    Args:
        url: ``gs://`` or ``s3://`` URL.
    Raises:
        OSError: The store does not say.
        MissingExtraError: The store's extra is not installed.

    Example:
        >>> get_bucket_location("gs://example-us-central2/data"), get_bucket_location("/local")
        ('us-central2', None)
    """
    if not url.startswith(_SCHEMES):
        return None
    scheme, _, rest = url.partition("://")
    return bucket_region(url) or _ask_location(scheme, rest.partition("/")[0])


def check_path_in_region(path: str, region: str | None = None, *, where: str = "path") -> None:
    """Make sure that a path is local or in ``region``.

    Args:
        path: Path or URL.
        region: Default this machine's; where that is not known nothing is checked.
        where: Name of the setting, for the error.
    Raises:
        CrossRegionPathError: It lies elsewhere.
        OSError: The store does not say where it lies.

    Example:
        >>> check_path_in_region("gs://example-us-central2/x", "us-central2")
        >>> check_path_in_region("gs://example-us-central2/x", "europe-west4")
        Traceback (most recent call last):
            ...
        rigging.errors.CrossRegionPathError: data in another region: ...
    """
    ours = region if region is not None else marin_region()
    theirs = get_bucket_location(path) if ours is not None else None
    if ours is not None and theirs is not None and not regions_match(ours, theirs):
        raise CrossRegionPathError(where, path, theirs, ours)


def check_gcs_paths_same_region(
    obj: object,
    *,
    local_ok: bool = True,
    region: str | None = None,
    skip_if_prefix_contains: tuple[str, ...] = DEFAULT_SKIP,
) -> None:
    """Make sure that every bucket URL in a configuration lies in ``region``.

    Args:
        obj: The configuration.
        local_ok: Whether this may run where the region is not known, as on a laptop; nothing is checked there.
        region: Default this machine's.
        skip_if_prefix_contains: Settings that may point elsewhere: what they name is read once and cached.
    Raises:
        CrossRegionPathError: One lies elsewhere; names the setting.
        ConfigError: The region is not known and ``local_ok`` is false.
        OSError: A store does not say where its bucket lies.

    Example:
        >>> config = {"cache": "gs://example-us-central2/c", "train_urls": ["gs://example-asia-east1/t"]}
        >>> check_gcs_paths_same_region(config, region="us-central2")
    """
    ours = region if region is not None else marin_region()
    if ours is None and not local_ok:
        raise ConfigError("region", "it is not known", "MARIN_REGION, or a machine that says where it is")
    for where, path in collect_gcs_paths(obj):
        if not any(part in where for part in skip_if_prefix_contains):
            check_path_in_region(path, ours, where=where)
