"""The ledger of a cache: what is complete, how much of it there is, and how it was made.

A cache is whatever its ``shard_ledger.json`` commits. Two layouts exist:

``consolidated``
    The arrays lie beside the ledger.
``sharded``
    No arrays beside the ledger: ``finished_shards`` names sub-folders in order, each a complete cache with its own
    ledger. Row *i* of the whole is found by binary search over the cumulative counts.

A ledger is checked when it is read (:meth:`CacheLedger.validate`): shard names are unique and stay inside the root,
counts are present, not negative, and add up. JSON is written with sorted keys, so equal caches have equal ledgers.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import numpy as np
from rigging.filesystem.atomic import write_text_atomic

from levanter.store._arrays import join_path
from levanter.store.errors import CacheNotFinishedError, LedgerFormatError, SchemaError

LEDGER_NAME = "shard_ledger.json"
CONSOLIDATED = "consolidated"
SHARDED = "sharded"


@dataclasses.dataclass(frozen=True)
class FieldSpec:
    """Element type and rank of one field.

    Attributes:
        dtype: Numpy name of the element type, such as ``"int32"``.
        rank: Dimensions of each row, ``>= 1``. A list of scalars is a row of rank 1.
    """

    dtype: str
    rank: int = 1

    def __post_init__(self) -> None:
        try:
            name = str(np.dtype(self.dtype))
        except TypeError as error:
            raise SchemaError("dtype", f"dtype is {self.dtype!r}", "a numpy dtype name") from error
        if self.rank < 1:
            raise SchemaError("rank", f"rank is {self.rank}", "rank >= 1")
        object.__setattr__(self, "dtype", name)


Schema = Mapping[str, FieldSpec]


@dataclasses.dataclass(frozen=True)
class CacheLedger:
    """What a cache holds. See the module for the two layouts.

    Attributes:
        total_num_rows: Rows of the whole cache.
        shard_rows: Rows of each shard by name.
        is_finished: Whether the cache may be read.
        finished_shards: Shard names in reading order.
        field_counts: Elements of each field over all rows.
        field_counts_by_shard: The same, shard by shard.
        layout: ``"consolidated"`` or ``"sharded"``.
        metadata: What made the cache: every setting that changes its content. ``None`` when unknown.
        schema: Field name to dtype and rank; empty for caches written without one.
    """

    total_num_rows: int
    shard_rows: Mapping[str, int]
    is_finished: bool = False
    finished_shards: Sequence[str] = ()
    field_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    field_counts_by_shard: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    layout: str = CONSOLIDATED
    metadata: Mapping[str, Any] | None = None
    schema: Schema = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """The ledger file: sorted keys, two-space indent, trailing newline."""
        document: dict[str, Any] = {
            "total_num_rows": self.total_num_rows,
            "shard_rows": dict(self.shard_rows),
            "is_finished": self.is_finished,
            "finished_shards": list(self.finished_shards),
            "field_counts": dict(self.field_counts),
            "field_counts_by_shard": {name: dict(counts) for name, counts in self.field_counts_by_shard.items()},
            "layout": self.layout,
            "metadata": {"preprocessor_metadata": None if self.metadata is None else dict(self.metadata)},
        }
        if self.schema:
            document["schema"] = {name: dataclasses.asdict(spec) for name, spec in self.schema.items()}
        return json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, path: str = "<memory>") -> "CacheLedger":
        """Parse and validate a ledger.

        Raises:
            LedgerFormatError: The text is no ledger, or contradicts itself.
        """
        try:
            raw = json.loads(text)
            ledger = cls(
                total_num_rows=int(raw["total_num_rows"]),
                shard_rows={name: int(rows) for name, rows in raw["shard_rows"].items()},
                is_finished=bool(raw["is_finished"]),
                finished_shards=tuple(raw.get("finished_shards", ())),
                field_counts={name: int(count) for name, count in raw.get("field_counts", {}).items()},
                field_counts_by_shard={
                    shard: {name: int(count) for name, count in counts.items()}
                    for shard, counts in raw.get("field_counts_by_shard", {}).items()
                },
                layout=raw.get("layout", CONSOLIDATED),
                metadata=(raw.get("metadata") or {}).get("preprocessor_metadata"),
                schema={name: FieldSpec(**spec) for name, spec in raw.get("schema", {}).items()},
            )
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise LedgerFormatError(path, f"cannot be parsed ({type(error).__name__}: {error})") from error
        ledger.validate(path)
        return ledger

    def validate(self, path: str = "<memory>") -> None:
        """Check that the ledger can be true.

        Raises:
            LedgerFormatError: With the first contradiction found.
        """
        for reason in self._contradictions():
            raise LedgerFormatError(path, reason)

    def _contradictions(self) -> list[str]:
        found = []
        if self.layout not in (CONSOLIDATED, SHARDED):
            found.append(f"layout={self.layout!r} is neither {CONSOLIDATED!r} nor {SHARDED!r}")
        names = list(self.finished_shards)
        if len(set(names)) != len(names):
            found.append("finished_shards names a shard twice")
        if self.total_num_rows < 0 or any(rows < 0 for rows in self.shard_rows.values()):
            found.append("a row count is negative")
        if self.layout == SHARDED:
            found += [f"shard {name!r} is outside the cache" for name in names if not _is_inside(name)]
            found += [f"shard {name!r} has no row count" for name in names if name not in self.shard_rows]
            found += _unknown("shard_rows", self.shard_rows, names)
            found += _unknown("field_counts_by_shard", self.field_counts_by_shard, names)
        if self.is_finished and self.shard_rows and sum(self.shard_rows.values()) != self.total_num_rows:
            total = sum(self.shard_rows.values())
            found.append(f"shard_rows sum to {total}, total_num_rows is {self.total_num_rows}")
        found += self._field_contradictions()
        return found

    def _field_contradictions(self) -> list[str]:
        found = []
        if not self.field_counts_by_shard:
            return found
        for field, total in self.field_counts.items():
            counts = [shard.get(field, 0) for shard in self.field_counts_by_shard.values()]
            if any(count < 0 for count in counts):
                found.append(f"a count of field {field!r} is negative")
            elif sum(counts) != total:
                found.append(f"counts of field {field!r} sum to {sum(counts)}, field_counts says {total}")
        return found


def read_ledger(cache_dir: str) -> CacheLedger:
    """Read and validate the ledger of a cache.

    Raises:
        CacheNotFinishedError: There is none, or it does not commit the cache.
        LedgerFormatError: It contradicts itself.
    """
    ledger = read_ledger_or_none(cache_dir)
    if ledger is None:
        raise CacheNotFinishedError(cache_dir, "no ledger")
    if not ledger.is_finished:
        raise CacheNotFinishedError(cache_dir, "the ledger says is_finished=false")
    return ledger


def read_ledger_or_none(cache_dir: str) -> CacheLedger | None:
    """The ledger of a cache, finished or not; ``None`` when there is none."""
    path = join_path(cache_dir, LEDGER_NAME)
    text = _read_text(path)
    return None if text is None else CacheLedger.from_json(text, path=path)


def write_ledger(cache_dir: str, ledger: CacheLedger) -> None:
    """Commit a ledger atomically. A different one that was there is kept as ``.bak``."""
    ledger.validate(cache_dir)
    path = join_path(cache_dir, LEDGER_NAME)
    text = ledger.to_json()
    previous = _read_text(path)
    if previous is not None and previous != text:
        write_text_atomic(path + ".bak", previous)
    write_text_atomic(path, text)


def _read_text(path: str) -> str | None:
    filesystem, native = fsspec.core.url_to_fs(path)
    try:
        return filesystem.cat_file(native).decode()
    except FileNotFoundError:
        return None


def metadata_differences(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys of ``expected`` whose recorded value is another, with (recorded, expected).

    Only expected keys are compared, so a reader may ask for the settings it knows.

    Example:
        >>> metadata_differences({"tokenizer": "a", "extra": 1}, {"tokenizer": "b"})
        {'tokenizer': ('a', 'b')}
    """
    recorded = found or {}
    return {key: (recorded.get(key), value) for key, value in expected.items() if recorded.get(key) != value}


def _is_inside(name: str) -> bool:
    if not name or "://" in name or name.startswith("/") or "\\" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _unknown(what: str, mapping: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    known = set(names)
    return [f"{what} names {name!r}, which is no finished shard" for name in mapping if name not in known]
