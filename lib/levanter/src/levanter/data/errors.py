"""Errors of datasets, mixtures, packing, sources and the loader.

::

    LevanterError
    └── DataError
        ├── DatasetIndexError     (IndexError)       an index outside a dataset
        ├── InfiniteDatasetError  (ValueError)       a length or a shuffle of a dataset without end
        ├── EmptyDatasetError     (ValueError)       a dataset without items where some are needed
        ├── PermutationError      (ValueError)       a permutation of an impossible length or kind
        ├── MixtureError          (ValueError)       weights, stages or block size that cannot be mixed
        ├── PackingError          (ValueError)       documents that cannot be packed as asked
        ├── BatchSizeError        (ValueError)       a batch that the devices cannot share
        ├── SourceError           (ValueError)       input files that are missing, unknown or name the same shard
        ├── BadRecordError        (ValueError)       one record that cannot be used: file, line, field
        └── DataConfigError       (ValueError)       a ``data:`` section that contradicts itself
"""

from collections.abc import Sequence

from levanter.errors import LevanterError


class DataError(LevanterError):
    """Root of every error that :mod:`levanter.data` raises on purpose."""


class DatasetIndexError(DataError, IndexError):
    """An index outside a dataset."""

    def __init__(self, what: str, index: int, length: int) -> None:
        self.what = what
        self.index = index
        self.length = length
        super().__init__(
            f"index out of range: dataset={what}, index={index}; expected 0 <= index < {length}. "
            "Ask for the length first (async_len)."
        )


class InfiniteDatasetError(DataError, ValueError):
    """An operation that needs an end, on a dataset that has none."""

    def __init__(self, what: str, operation: str) -> None:
        self.what = what
        self.operation = operation
        super().__init__(
            f"dataset has no end: dataset={what}, operation={operation}; expected a finite dataset. "
            "Cut it first with take(n) or slice_dataset."
        )


class EmptyDatasetError(DataError, ValueError):
    """A dataset without items where some are needed."""

    def __init__(self, what: str, hint: str) -> None:
        self.what = what
        super().__init__(f"dataset is empty: dataset={what}; expected at least one item. {hint}")


class PermutationError(DataError, ValueError):
    """A permutation of an impossible length or of an unknown kind."""

    def __init__(self, kind: str, length: int, expected: str) -> None:
        self.kind = kind
        self.length = length
        super().__init__(
            f"cannot permute: kind={kind!r}, length={length}; expected {expected}. Use perm_type='feistel'."
        )


class MixtureError(DataError, ValueError):
    """Weights, stages or a block size that cannot be mixed."""

    def __init__(self, reason: str, expected: str, advice: str) -> None:
        self.reason = reason
        super().__init__(f"cannot mix datasets: {reason}; expected {expected}. {advice}")


class PackingError(DataError, ValueError):
    """Documents that cannot be packed as asked."""

    def __init__(self, reason: str, expected: str, advice: str) -> None:
        self.reason = reason
        super().__init__(f"cannot pack documents: {reason}; expected {expected}. {advice}")


class BatchSizeError(DataError, ValueError):
    """A batch size that the devices cannot share evenly."""

    def __init__(self, batch_size: int, data_axis_size: int) -> None:
        self.batch_size = batch_size
        self.data_axis_size = data_axis_size
        nearest = -(-batch_size // data_axis_size) * data_axis_size
        super().__init__(
            f"batch cannot be shared by the devices: batch_size={batch_size}, data_axis_size={data_axis_size}; "
            f"expected a multiple of {data_axis_size}. Use batch_size={nearest}, "
            "or pass allow_nondivisible_batch_size=True to pad."
        )


class SourceError(DataError, ValueError):
    """Input files that are missing, of an unknown kind, or that name the same shard."""

    failure_category = "data"

    def __init__(self, reason: str, paths: Sequence[str], expected: str) -> None:
        self.reason = reason
        self.paths = list(paths)
        shown = ", ".join(repr(path) for path in self.paths[:10])
        more = f" and {len(self.paths) - 10} more" if len(self.paths) > 10 else ""
        super().__init__(f"input files cannot be used: {reason}: {shown}{more}; expected {expected}. Correct them.")


class BadRecordError(DataError, ValueError):
    """One record that cannot be used."""

    failure_category = "data"

    def __init__(self, path: str, line_number: int, reason: str, excerpt: str = "") -> None:
        self.path = path
        self.line_number = line_number
        self.reason = reason
        self.excerpt = excerpt[:120]
        super().__init__(
            f"bad record: path={path!r}, line={line_number}, reason={reason}, excerpt={self.excerpt!r}; "
            "expected one document a record. Repair the file, or choose on_bad_record='skip'."
        )


class DataConfigError(DataError, ValueError):
    """A ``data:`` section that contradicts itself or the files it names."""

    def __init__(self, key: str, reason: str, expected: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"data configuration cannot be used: key={key!r}, {reason}; expected {expected}. Edit it.")
