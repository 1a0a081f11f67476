"""What can go wrong in dupekit, as one tree::

    DupekitError
    ├── NativeModuleError (ImportError)      the native module is missing or of another contract
    ├── ParameterError (ValueError)          a parameter lies outside its range
    ├── ColumnNotFoundError (ValueError)     a step names a column the batch lacks
    ├── ColumnTypeError (TypeError)          a column has a type the step cannot read
    ├── ParseError (ValueError)              bytes are not what they claim to be
    └── BatchTooLargeError (ValueError)      a result column would pass 2^31 bytes or values

Every class takes keyword arguments, keeps them as attributes and survives pickling, so it crosses process borders.
"""

from collections.abc import Sequence


class DupekitError(Exception):
    """Base of all errors that dupekit raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the message alone, then restore the fields."""
        return (_rebuild, (type(self), str(self), dict(self.__dict__)))


def _rebuild(kind: type[DupekitError], message: str, fields: dict[str, object]) -> DupekitError:
    error = kind.__new__(kind, message)
    error.args = (message,)
    error.__dict__.update(fields)
    return error


class NativeModuleError(DupekitError, ImportError):
    """The native module `dupekit_native` cannot be used.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"cannot use the native part of dupekit: {reason}; expected the module dupekit_native that goes with this "
            "version. In a checkout run `uv sync`; elsewhere `pip install` the file marin_dupekit_native-*.whl that "
            "was released with this package. `scripts/rust_mode.py status` says which build is in use."
        )


class ParameterError(DupekitError, ValueError):
    """A parameter lies outside its range.

    Attributes:
        name: Name of the parameter.
        value: Given value, as text.
        expected: What would have been accepted.
    """

    def __init__(self, *, name: str, value: str, expected: str) -> None:
        self.name, self.value, self.expected = name, value, expected
        super().__init__(f"bad parameter: {name}={value}; expected {expected}. Pass a value in that range.")


class ColumnNotFoundError(DupekitError, ValueError):
    """A step names a column that the batch does not have.

    Attributes:
        column: Name that was asked for.
        available: Names the batch has at that step.
    """

    def __init__(self, *, column: str, available: Sequence[str]) -> None:
        self.column, self.available = column, tuple(available)
        names = ", ".join(self.available) or "none"
        super().__init__(
            f"cannot find a column: column={column!r}; expected one of: {names}. Check the step's column name and "
            "that no earlier step dropped the column."
        )


class ColumnTypeError(DupekitError, TypeError):
    """A column has a type that the step cannot read.

    Attributes:
        column: Name of the column.
        found: Its Arrow type.
        expected: Types the step reads.
    """

    def __init__(self, *, column: str, found: str, expected: str) -> None:
        self.column, self.found, self.expected = column, found, expected
        super().__init__(
            f"cannot read a column: column={column!r}, type={found}; expected {expected}. Cast it first, for instance "
            "with pyarrow.compute.cast."
        )


class ParseError(DupekitError, ValueError):
    """Bytes are not what they claim to be.

    Attributes:
        what: What was being read.
        reason: What is wrong with it.
    """

    def __init__(self, *, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"cannot read {what}: {reason}. Make sure the data is whole and of this format.")


class BatchTooLargeError(DupekitError, ValueError):
    """A result column would need more than 2^31 - 1 bytes or values.

    Attributes:
        column: Name of the result column.
    """

    def __init__(self, *, column: str) -> None:
        self.column = column
        super().__init__(
            f"cannot build a column: column={column!r} would pass 2^31 - 1 bytes or values; expected less in one "
            "batch. Split the batch, for instance with Table.to_batches(max_chunksize=16384)."
        )
