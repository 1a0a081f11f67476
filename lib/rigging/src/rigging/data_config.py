"""Where a cluster keeps its data: one bucket a region, and where short-lived files go.

The section ``data:`` of a cluster's YAML file (found by ``rigging.config_discovery``)::

    data:
      region_buckets:
        us-central2: {bucket: example-us-central2, store: gcs}
        eu-west-1: {bucket: example-eu, store: s3}
      temp: {path: tmp, ttl_days: [1, 7, 30]}
      root: gs://example-bucket/store        # optional; else the bucket of this machine's region

Library code names no bucket and no region; this is where they come from.
"""

import contextlib
import contextvars
import functools
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rigging import _env
from rigging.config_discovery import load_config, resolve_cluster_config
from rigging.errors import ConfigError

DEFAULT_TTL_DAYS: Final = (1, 2, 3, 4, 5, 6, 7, 14, 30)
_STORE_SCHEMES: Final = {"gcs": "gs", "s3": "s3", "r2": "s3", "coreweave": "s3"}


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Where data lives.

    Args:
        region_buckets: Region to bucket URL, such as ``{"us-central2": "gs://example-us-central2"}``.
        temp_path: Folder for short-lived files below the root.
        ttl_days: Lives in days that temporary files can have; the store's lifecycle rules should agree.
        root: Root of the store wherever the machine is; None for the bucket of its region.
    Raises:
        ConfigError: A time to live that is no positive whole number, or none at all.

    Example:
        >>> config = DataConfig(region_buckets={"us-central2": "gs://example-us"})
        >>> config.resolved_root("us-central2"), config.resolved_root("europe-west4")
        ('gs://example-us', None)
    """

    region_buckets: Mapping[str, str] = field(default_factory=dict)
    temp_path: str = "tmp"
    ttl_days: tuple[int, ...] = DEFAULT_TTL_DAYS
    root: str | None = None

    def __post_init__(self) -> None:
        if not self.ttl_days or any(type(days) is not int or days < 1 for days in self.ttl_days):
            raise ConfigError("data.temp.ttl_days", f"it is {list(self.ttl_days)!r}", "whole numbers of days above 0")
        object.__setattr__(self, "ttl_days", tuple(sorted(set(self.ttl_days))))

    def resolved_root(self, region: str | None) -> str | None:
        """Return the root, or the bucket of ``region``; None when the configuration names neither."""
        return self.root or (self.region_buckets.get(region) if region is not None else None)

    def bucket_region(self, url: str) -> str | None:
        """Return the region of a bucket that the configuration names; None for any other."""
        place = url.partition("://")[2].partition("/")[0]
        for region, bucket in self.region_buckets.items():
            if bucket.partition("://")[2].partition("/")[0] == place:
                return region
        return None


def parse_data_config(document: Mapping[str, Any], where: str = "data") -> DataConfig:
    """Read the section ``data:`` of a cluster configuration.

    Args:
        document: The section.
        where: Name of the file, for errors.
    Raises:
        ConfigError: An unknown field, store or type.

    Example:
        >>> parse_data_config({"region_buckets": {"eu": {"bucket": "example-eu", "store": "gcs"}}}).region_buckets
        {'eu': 'gs://example-eu'}
    """
    _refuse_unknown(document, ("region_buckets", "scheme", "temp", "root", "stores"), where)
    scheme = document.get("scheme", "gs")
    buckets = {}
    for region, entry in _mapping(document, "region_buckets", where).items():
        if isinstance(entry, str):
            entry = {"bucket": entry}
        if not isinstance(entry, Mapping) or not isinstance(entry.get("bucket"), str):
            raise ConfigError(f"{where}: region_buckets.{region}", f"it is {entry!r}", "a mapping with a bucket")
        _refuse_unknown(entry, ("bucket", "store", "signing_region"), f"{where}: region_buckets.{region}")
        store = entry.get("store")
        if store is not None and store not in _STORE_SCHEMES:
            raise ConfigError(f"{where}: region_buckets.{region}.store", f"it is {store!r}", f"{list(_STORE_SCHEMES)}")
        buckets[str(region)] = f"{scheme if store is None else _STORE_SCHEMES[store]}://{entry['bucket']}"
    temp = _mapping(document, "temp", where)
    _refuse_unknown(temp, ("path", "ttl_days"), f"{where}: temp")
    days = temp.get("ttl_days", DEFAULT_TTL_DAYS)
    if not isinstance(days, list | tuple):
        raise ConfigError(f"{where}: temp.ttl_days", f"it is {days!r}", "a list of whole numbers")
    return DataConfig(buckets, str(temp.get("path", "tmp")).strip("/"), tuple(days), document.get("root"))


def _mapping(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {name}", f"it is a {type(value).__name__}", "a mapping")
    return value


def _refuse_unknown(document: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(map(str, document)) - set(known))
    if unknown:
        raise ConfigError(where, f"unknown fields {unknown}", f"some of {list(known)}")


_override: contextvars.ContextVar[DataConfig | None] = contextvars.ContextVar("data_config", default=None)


@functools.lru_cache(maxsize=8)
def _load(cluster: str) -> DataConfig:
    path = resolve_cluster_config(cluster)
    return parse_data_config(_mapping(load_config(path), "data", str(path)), str(path))


def data_config() -> DataConfig:
    """Return where data lives: the ``use_data_config`` in force, else what ``MARIN_CLUSTER`` names, else nothing.

    Raises:
        ConfigNotFoundError: ``MARIN_CLUSTER`` names a configuration that is nowhere.
        ConfigError: Its file is not one.
    """
    override = _override.get()
    if override is not None:
        return override
    cluster = _env.CLUSTER.get()
    return _load(cluster) if cluster is not None else _NOTHING


_NOTHING: Final = DataConfig()


@contextlib.contextmanager
def use_data_config(config: DataConfig) -> Generator[DataConfig]:
    """Let ``config`` be in force in this context while the body runs.

    Example:
        >>> with use_data_config(DataConfig(root="/store")):
        ...     data_config().root
        '/store'
    """
    token = _override.set(config)
    try:
        yield config
    finally:
        _override.reset(token)


def reset_data_config_cache() -> None:
    """Read the configuration file again the next time."""
    _load.cache_clear()
