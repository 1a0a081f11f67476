"""Where the artifact store is, and which region this machine is in.

``MARIN_PREFIX`` names the store; else the cluster configuration that ``MARIN_CLUSTER`` names; without both the store is
the folder ``marin_store`` in the current directory, so everything runs with no server and no account.
"""

import os

from rigging import _env
from rigging.data_config import data_config
from rigging.filesystem.regions import machine_region, region_from_prefix

_DEFAULT_FOLDER = "marin_store"

__all__ = ["marin_prefix", "marin_region", "region_from_prefix"]


def marin_prefix() -> str:
    """Return the root of the artifact store: ``MARIN_PREFIX``, the cluster's root, or the path of ``./marin_store``.

    A local path comes back absolute; a URL comes back without a slash at the end.

    Raises:
        ConfigNotFoundError: ``MARIN_CLUSTER`` names a configuration that is nowhere.

    Example:
        >>> from rigging.data_config import DataConfig, use_data_config
        >>> with use_data_config(DataConfig(root="gs://example-bucket/store")):
        ...     print(marin_prefix() if "MARIN_PREFIX" not in os.environ else "gs://example-bucket/store")
        gs://example-bucket/store
    """
    value = _env.PREFIX.get() or data_config().resolved_root(machine_region()) or _DEFAULT_FOLDER
    if "://" in value:
        return value.rstrip("/")
    return os.path.abspath(os.path.expanduser(value))


def marin_region() -> str | None:
    """Return the region of this machine, or that of the store, which is where a machine of ours should be.

    In order: ``MARIN_REGION``, the metadata server, the region in the prefix's bucket name, None.
    """
    return machine_region() or region_from_prefix(marin_prefix())
