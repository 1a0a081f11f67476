"""On-disk token caches: columns of variable-length rows, a ledger that says what is complete, and nothing else.

A cache is a folder. Each field of a row (``input_ids``, ``assistant_masks`` ...) is one
:class:`~levanter.store.jagged_array.JaggedArrayStore`; the fields together are a
:class:`~levanter.store.tree_store.TreeStore`; a ``shard_ledger.json`` beside them commits the whole, or names the
sub-folders that do (:mod:`levanter.store.ledger`). Readers trust only what a ledger commits, so a killed writer is
invisible. This package imports neither jax nor any sibling but rigging: tokenising workers stay light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levanter.store.cache import SerialCacheWriter as SerialCacheWriter
    from levanter.store.cache import TreeCache as TreeCache
    from levanter.store.cache import consolidate_shard_cache_ledgers as consolidate_shard_cache_ledgers
    from levanter.store.cache import verify_cache as verify_cache
    from levanter.store.jagged_array import JaggedArrayStore as JaggedArrayStore
    from levanter.store.jagged_array import PreparedBatch as PreparedBatch
    from levanter.store.ledger import CacheLedger as CacheLedger
    from levanter.store.ledger import FieldSpec as FieldSpec
    from levanter.store.tree_store import TreeStore as TreeStore

_EXPORTS = {
    "CacheLedger": "levanter.store.ledger",
    "FieldSpec": "levanter.store.ledger",
    "JaggedArrayStore": "levanter.store.jagged_array",
    "PreparedBatch": "levanter.store.jagged_array",
    "SerialCacheWriter": "levanter.store.cache",
    "TreeCache": "levanter.store.cache",
    "TreeStore": "levanter.store.tree_store",
    "consolidate_shard_cache_ledgers": "levanter.store.cache",
    "verify_cache": "levanter.store.cache",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
