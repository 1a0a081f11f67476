"""What can be wrong with a corpus.

::

    DatakitError
    ├── SourceSyntaxError      (ValueError)         a --data argument that cannot be read
    ├── SourceNotFoundError    (FileNotFoundError)  nothing lies where the source points
    ├── SourceAccessError      (PermissionError)    a gated or private source and no token that opens it
    ├── EmptyCorpusError       (ValueError)         a stage would hand nothing on
    ├── DocumentFieldError     (ValueError)         a record lacks its text, or the text is no string
    ├── UndecodableFileError   (ValueError)         a text file is not UTF-8
    ├── MissingSuiteError      (ValueError)         an evaluation suite that must be indexed is not there, or is empty
    ├── FeatureVersionError    (ValueError)         an index made with other features than the marks
    └── ShardMismatchError     (ValueError)         attributes that do not lie beside these documents

Every class carries ``failure_category = "data"``: the engine files the attempt under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _revive(kind: type[DatakitError], args: tuple[Any, ...], fields: dict[str, Any]) -> DatakitError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError takes them in __init__, which is not called here
    error.__dict__.update(fields)
    return error


class DatakitError(Exception):
    """Base of the errors of this room; the attempt that raised it is filed under ``data``."""

    failure_category = "data"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and fields: these errors are raised in workers and read in the driver."""
        return _revive, (type(self), self.args, self.__dict__)


class SourceSyntaxError(DatakitError, ValueError):
    """A source argument that is neither ``stdlib``, ``path:GLOB`` nor ``hf:ID[@REVISION]``."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        super().__init__(
            f"cannot read the data source: argument={argument!r}; expected 'stdlib', 'path:GLOB' or "
            "'hf:ID[@REVISION]'. Write for example --data 'path:corpus/*.jsonl.gz'."
        )


class SourceNotFoundError(DatakitError, FileNotFoundError):
    """Nothing readable lies where the source points."""

    def __init__(self, location: str, expected: str) -> None:
        self.location = location
        self.expected = expected
        super().__init__(
            f"no input found: location={location!r}; expected {expected}. Check the path and its spelling."
        )

    def __str__(self) -> str:  # OSError would print its errno form
        return str(self.args[0])


class SourceAccessError(DatakitError, PermissionError):
    """A gated or private source that no token opens."""

    failure_category = "auth"

    def __init__(self, label: str) -> None:
        self.label = label
        super().__init__(
            f"access denied: source={label!r}; expected a token that may read it. Accept its terms on the hub and set "
            "HF_TOKEN."
        )

    def __str__(self) -> str:  # OSError would print its errno form
        return str(self.args[0])


class EmptyCorpusError(DatakitError, ValueError):
    """A stage has no document left to hand on."""

    def __init__(self, stage: str, *, seen: int, detail: str) -> None:
        self.stage = stage
        self.seen = seen
        self.detail = detail
        super().__init__(
            f"no documents are left after {stage}: documents_in={seen}, documents_out=0; expected at least one. "
            f"{detail}"
        )


class DocumentFieldError(DatakitError, ValueError):
    """A record without its text field, or with a text that is not a string."""

    def __init__(self, field: str, *, found: str, where: str) -> None:
        self.field = field
        self.found = found
        self.where = where
        super().__init__(
            f"cannot take the text of a record: field={field!r}, found {found} in {where}; expected a string. "
            "Name the right field with --text-key."
        )


class UndecodableFileError(DatakitError, ValueError):
    """A text file that is not UTF-8."""

    def __init__(self, path: str, *, position: int, byte: int) -> None:
        self.path = path
        self.position = position
        self.byte = byte
        super().__init__(
            f"cannot decode a text file: path={path!r}, position={position}, byte=0x{byte:02x}; expected UTF-8. "
            "Convert it (iconv -t UTF-8) or leave it out of the glob."
        )


class MissingSuiteError(DatakitError, ValueError):
    """Evaluation suites that are required and not there, or without text."""

    def __init__(self, missing: Sequence[str], *, known: Sequence[str], detail: str) -> None:
        self.missing = tuple(missing)
        self.known = tuple(known)
        super().__init__(
            f"evaluation suites are missing: missing={list(missing)}, known={list(known)}; expected every required "
            f"suite, and at least one, with text. {detail}"
        )


class FeatureVersionError(DatakitError, ValueError):
    """An index whose hashes mean something else than those of the reader."""

    def __init__(self, path: str, *, found: int, expected: int) -> None:
        self.path = path
        self.found = found
        self.expected = expected
        super().__init__(
            f"cannot use an evaluation index: path={path!r}, feature_version={found}; expected {expected}. "
            "Build the index again with this release."
        )


class ShardMismatchError(DatakitError, ValueError):
    """Attributes that were not made for the documents beside which they are read."""

    def __init__(self, attributes: str, documents: str, *, detail: str) -> None:
        self.attributes = attributes
        self.documents = documents
        super().__init__(
            f"attributes do not fit the documents: attributes={attributes!r}, documents={documents!r}, {detail}; "
            "expected one attribute shard of the same name beside every document shard, with ids of that shard. "
            "Make the attributes from these documents."
        )
