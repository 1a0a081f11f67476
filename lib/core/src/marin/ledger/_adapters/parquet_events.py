"""Events as Parquet, an extra: ``pip install marin-core[ledger]``. Any tool that reads Parquet can read them."""

import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from marin.errors import CorruptRecordError, UsageError
from marin.execution._objects import is_remote, read_object
from marin.execution.events import LedgerEvent

_TEXT_COLUMNS = ("id", "at", "kind", "step", "version", "digest", "attempt", "actor", "commit", "data")


def _libraries() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        UsageError: They are not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        hint = "Install it: pip install 'marin-core[ledger]'."
        raise UsageError("compacted events need pyarrow.", hint=hint) from None
    return pa, pq


def to_parquet(events: Sequence[LedgerEvent]) -> bytes:
    """One Parquet file of events, sorted by id; equal events give equal bytes (with one version of pyarrow).

    Raises:
        UsageError: pyarrow is not installed.
    """
    pa, pq = _libraries()
    rows = []
    for event in sorted(events, key=lambda item: item.id):
        data = json.dumps(event.data, sort_keys=True, ensure_ascii=False)
        rows.append({**dataclasses.asdict(event), "data": data})
    schema = pa.schema([(name, pa.string()) for name in _TEXT_COLUMNS] + [("record_format", pa.int64())])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def read_parquet(path: str) -> Iterator[LedgerEvent]:
    """Events of one Parquet file, local or remote.

    Raises:
        UsageError: pyarrow is not installed.
        CorruptRecordError: The file is not what ``to_parquet`` writes.
        FileNotFoundError: It is gone: another compaction has taken its events over.
    """
    pa, pq = _libraries()
    try:
        table = pq.read_table(io.BytesIO(_read(path)))
        for row in table.to_pylist():
            row["data"] = json.loads(row["data"])
            yield LedgerEvent.from_json(row)
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(path, f"it does not hold events ({error})") from None


def _read(path: str) -> bytes:
    if is_remote(path):
        data = read_object(path)
        if data is None:
            raise FileNotFoundError(path)
        return data
    with open(path, "rb") as file:
        return file.read()
