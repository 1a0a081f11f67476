"""The fields of a cache side by side: a :class:`JaggedArrayStore` for each leaf of a row.

A row is a mapping (or a nest of mappings and sequences) of arrays. Its leaves are named by their path joined with
``/``, and that is the sub-folder they live in. A *list of scalars is one leaf*, not many: a row of token ids may be a
Python list. The schema is always explicit, field name to dtype and rank; it can be derived from an example row with
:func:`schema_from_exemplar`, or from what is on disk with :func:`schema_on_disk`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec
import numpy as np

from levanter.store._arrays import join_path
from levanter.store.errors import SchemaError
from levanter.store.jagged_array import JaggedArrayStore, OpenMode, PreparedBatch
from levanter.store.ledger import FieldSpec, Schema

Row = Mapping[str, Any]


def flatten_row(row: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a row with their paths.

    Example:
        >>> dict(flatten_row({"a": [1, 2], "b": {"c": np.zeros(3)}})).keys()
        dict_keys(['a', 'b/c'])
    """
    if isinstance(row, Mapping):
        for key, value in row.items():
            yield from flatten_row(value, f"{prefix}/{key}" if prefix else str(key))
    elif isinstance(row, list | tuple) and not _is_scalar_list(row):
        for number, value in enumerate(row):
            yield from flatten_row(value, f"{prefix}/{number}" if prefix else str(number))
    else:
        yield prefix, row


def _is_scalar_list(value: Sequence[Any]) -> bool:
    return all(isinstance(item, bool | int | float | np.generic) for item in value)


def unflatten_row(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nest leaves named by paths into dicts. Keys without ``/`` stay as they are.

    Example:
        >>> unflatten_row({"a": 1, "b/c": 2})
        {'a': 1, 'b': {'c': 2}}
    """
    row: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, last = path.split("/")
        place = row
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return row


def schema_from_exemplar(exemplar: Any) -> dict[str, FieldSpec]:
    """Field names, dtypes and ranks of an example row.

    Args:
        exemplar: A row. Python ints become int64, floats float64; use numpy arrays to choose.
    Raises:
        SchemaError: A leaf is a scalar or not numeric.
    Example:
        >>> schema_from_exemplar({"input_ids": np.zeros(2, np.int32)})
        {'input_ids': FieldSpec(dtype='int32', rank=1)}
    """
    schema = {}
    for path, leaf in flatten_row(exemplar):
        array = np.asarray(leaf)
        if array.ndim < 1 or array.dtype.kind not in "biuf":
            raise SchemaError(path, f"leaf is a rank-{array.ndim} {array.dtype}", "a numeric array of rank >= 1")
        schema[path] = FieldSpec(str(array.dtype), array.ndim)
    return schema


def schema_on_disk(path: str) -> dict[str, FieldSpec]:
    """Field names, dtypes and ranks found in a folder, for caches whose ledger records no schema."""
    filesystem, root = fsspec.core.url_to_fs(path)
    schema = {}
    for found in sorted(filesystem.glob(f"{root.rstrip('/')}/**/offsets/zarr.json")):
        field = found.removesuffix("/offsets/zarr.json").removeprefix(root.rstrip("/") + "/")
        store = JaggedArrayStore.open(join_path(path, field))
        schema[field] = FieldSpec(str(store.dtype), store.item_rank)
    return schema


class TreeStore:
    """Rows of several fields. Make one with :meth:`open`."""

    def __init__(self, path: str, fields: Mapping[str, JaggedArrayStore]) -> None:
        self.path = path
        self.fields = dict(fields)

    @classmethod
    def open(cls, path: str, schema: Schema, *, mode: OpenMode = "r") -> "TreeStore":
        """Open or create every field of ``schema`` in folder ``path``.

        Raises:
            SchemaError: A field on disk has another dtype or rank, or the schema is empty.
            FileNotFoundError: A field is missing and ``mode`` is not ``w``.
        """
        if not schema:
            raise SchemaError("*", "schema has no fields", "at least one field")
        fields = {
            name: JaggedArrayStore.open(join_path(path, name), mode=mode, item_rank=spec.rank, dtype=spec.dtype)
            for name, spec in schema.items()
        }
        return cls(path, fields)

    @property
    def schema(self) -> dict[str, FieldSpec]:
        """Field name to dtype and rank."""
        return {name: FieldSpec(str(store.dtype), store.item_rank) for name, store in self.fields.items()}

    @property
    def num_rows(self) -> int:
        """Rows that every field has committed: a torn append to some of the fields does not count."""
        return min(store.num_rows for store in self.fields.values())

    def __len__(self) -> int:
        return self.num_rows

    def extend(self, rows: Sequence[Row]) -> None:
        """Add rows.

        Raises:
            SchemaError: A row lacks a field, or has one too many.
        """
        self.extend_columns(self.prepare(rows))

    def prepare(self, rows: Sequence[Row]) -> dict[str, PreparedBatch]:
        """Turn rows into one flat batch a field.

        Raises:
            SchemaError: A row lacks a field, has one too many, or one of another rank.
        """
        columns: dict[str, list[Any]] = {name: [] for name in self.fields}
        for row in rows:
            leaves = dict(flatten_row(row))
            if leaves.keys() != columns.keys():
                odd = sorted(leaves.keys() ^ columns.keys())
                raise SchemaError(odd[0], f"row has fields {sorted(leaves)}", f"exactly {sorted(columns)}")
            for name, leaf in leaves.items():
                columns[name].append(leaf)
        return {
            name: PreparedBatch.from_batch(items, item_rank=self.fields[name].item_rank, dtype=self.fields[name].dtype)
            for name, items in columns.items()
        }

    def extend_columns(self, columns: Mapping[str, PreparedBatch]) -> None:
        """Add rows that are already flat, one batch a field.

        Raises:
            SchemaError: Fields are missing or have different numbers of rows.
        """
        if columns.keys() != self.fields.keys():
            raise SchemaError("*", f"batch has fields {sorted(columns)}", f"exactly {sorted(self.fields)}")
        counts = {name: batch.num_rows for name, batch in columns.items()}
        if len(set(counts.values())) > 1:
            raise SchemaError("*", f"fields have different numbers of rows: {counts}", "equal numbers")
        for name, batch in columns.items():
            self.fields[name].extend(batch)

    def trim_to_size(self, num_rows: int) -> None:
        """Drop the rows from ``num_rows`` on, in every field."""
        for store in self.fields.values():
            store.trim_to_size(num_rows)

    def reload(self) -> "TreeStore":
        """A new handle that sees rows committed by other handles since this one opened."""
        return TreeStore(self.path, {name: store.reload() for name, store in self.fields.items()})

    def get_batch_sync(self, rows: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Rows in the order asked for, nested as their paths say.

        Raises:
            RowIndexError: A row is outside the store.
        """
        columns = {name: store.get_batch_sync(rows) for name, store in self.fields.items()}
        return _to_rows(columns, len(rows))

    async def get_batch(self, rows: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The twin of :meth:`get_batch_sync` for coroutines."""
        columns = {name: await store.get_batch(rows) for name, store in self.fields.items()}
        return _to_rows(columns, len(rows))

    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            return self.get_batch_sync(range(*item.indices(self.num_rows)))
        return self.get_batch_sync([item + self.num_rows if item < 0 else item])[0]


def _to_rows(columns: Mapping[str, list[np.ndarray]], count: int) -> list[dict[str, Any]]:
    return [unflatten_row({name: items[i] for name, items in columns.items()}) for i in range(count)]
