"""Errors of the cache store.

::

    LevanterError
    └── StoreError
        ├── CacheNotFinishedError   (FileNotFoundError)  no ledger, or a ledger that does not commit
        ├── CacheMetadataError      (ValueError)         the cache was built from other settings than expected
        ├── LedgerFormatError       (ValueError)         a ledger contradicts itself or is of an unknown layout
        ├── CorruptCacheError       (OSError)            a committed cache lacks data that its ledger promises
        ├── CacheExistsError        (FileExistsError)    a finished cache would be overwritten
        ├── RowIndexError           (IndexError)         a row or token window outside the cache
        ├── SchemaError             (ValueError)         rows do not fit the declared fields, dtypes or ranks
        └── StoragePathError        (ValueError)         no storage driver for this path
"""

from collections.abc import Mapping
from typing import Any

from levanter.errors import LevanterError


class StoreError(LevanterError):
    """Root of every error that :mod:`levanter.store` raises on purpose."""


class CacheNotFinishedError(StoreError, FileNotFoundError):
    """The folder holds no committed cache: its ledger is missing or says ``is_finished: false``."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"no finished cache: path={path!r}, reason={reason}; expected a committed shard_ledger.json. "
            "Build the cache, or point at the folder that holds the ledger."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class CacheMetadataError(StoreError, ValueError):
    """The settings recorded in the ledger differ from the settings the reader expects."""

    def __init__(self, path: str, differences: Mapping[str, tuple[Any, Any]]) -> None:
        self.path = path
        self.differences = dict(differences)
        lines = "\n".join(
            f"  {key}: cache has {found!r}, expected {wanted!r}" for key, (found, wanted) in differences.items()
        )
        super().__init__(
            f"cache was built with other settings: path={path!r}, differing keys={sorted(differences)}; "
            f"expected the same preprocessing.\n{lines}\n"
            "Rebuild the cache in another folder, or pass on_mismatch='warn' if the difference is harmless."
        )


class LedgerFormatError(StoreError, ValueError):
    """A ledger that cannot be true: counts that do not add up, shards outside the root, an unknown layout."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"ledger is not valid: path={path!r}, reason={reason}; expected a ledger written by this library. "
            "Rebuild the cache; if the file was edited by hand, restore shard_ledger.json.bak."
        )


class CorruptCacheError(StoreError, OSError):
    """A ledger promises data that is not on disk or cannot be decoded."""

    def __init__(self, path: str, field: str, reason: str) -> None:
        self.path = path
        self.field = field
        self.reason = reason
        super().__init__(
            f"cache data is damaged: path={path!r}, field={field!r}, reason={reason}; expected what the ledger "
            "promises. Delete this shard's folder and rebuild; other shards are kept."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class CacheExistsError(StoreError, FileExistsError):
    """A writer was asked to create a cache where a finished one lives."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"a finished cache is already there: path={path!r}; expected an empty place. "
            "Choose another folder, or pass mode='w' to replace it."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class RowIndexError(StoreError, IndexError):
    """An index or token window that lies outside the store."""

    def __init__(self, what: str, index: int, limit: int) -> None:
        self.what = what
        self.index = index
        self.limit = limit
        super().__init__(
            f"{what} out of range: index={index}, limit={limit}; expected 0 <= index < limit. "
            "Ask for the length first (num_rows, flat_field_length)."
        )


class SchemaError(StoreError, ValueError):
    """Rows or files that do not fit the declared fields, dtypes or ranks."""

    def __init__(self, field: str, reason: str, expected: str) -> None:
        self.field = field
        self.reason = reason
        self.expected = expected
        super().__init__(
            f"row does not fit the schema: field={field!r}, {reason}; expected {expected}. "
            "Change the schema or the processor that makes the rows."
        )


class StoragePathError(StoreError, ValueError):
    """A URL scheme for which no array storage driver exists."""

    def __init__(self, path: str, scheme: str) -> None:
        self.path = path
        self.scheme = scheme
        super().__init__(
            f"no array storage for path={path!r}: scheme={scheme!r}; expected a local path, file://, gs:// or s3://. "
            "Copy the cache to one of these."
        )
