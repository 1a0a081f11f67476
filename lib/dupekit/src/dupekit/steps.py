"""A chain of text steps over an Arrow batch, run in native code with the interpreter lock released.

A step is plain data: it can be compared, printed, pickled and sent to a worker process. `transform` checks the whole
chain and runs it without returning to Python between steps. Columns come in through the Arrow C data interface, so
string columns of all three layouts (`string`, `large_string`, `string_view`) are read in place.

Invariants: rows keep their order; a null input gives a null output; equal inputs give equal bytes on every CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import pyarrow as pa

from dupekit._native import native
from dupekit.errors import ParameterError
from dupekit.hashing import DEFAULT_HASH_ALGORITHM, HashAlgorithm

Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)
"""A record batch or a table; `transform` returns what it was given."""


class NgramKind(StrEnum):
    """What a shingle counts."""

    Char = "char"
    """Unicode scalar values."""
    Word = "word"
    """Words between Unicode white space."""


class MinHashKind(StrEnum):
    """Which formula makes a signature; signatures of different kinds cannot be compared."""

    COMPAT = "compat"
    """64-bit slots from 128-bit products: `min((xxh3_64(shingle) * c_i mod 2^128) >> 64)`."""
    FAST32 = "fast32"
    """32-bit slots from a rolling shingle hash: an order of magnitude faster, half the size."""


class Step(Protocol):
    """Something `transform` can run: any member of `Transformation`."""

    def native_step(self) -> tuple[object, ...]:
        """The step as the native module reads it: a tag, then the fields."""
        ...


class Transformation:
    """The steps that `transform` knows.

    Example:
        >>> Transformation.Hash("text", "digest")
        Transformation.Hash(input_col='text', output_col='digest', algo=<HashAlgorithm.Xxh3_128: 'xxh3_128'>)
    """

    @dataclass(frozen=True, slots=True)
    class SplitParagraphs:
        """Replace the batch by one row a paragraph.

        Texts are split at line feeds and empty pieces dropped; null texts give no rows. The result has the columns
        `doc_id` (string), `paragraph_text` (string) and `paragraph_span` (a struct whose field `span` is the list
        `[start, end]` of byte offsets into the text's UTF-8).

        Args:
            text_col: Column of texts.
            id_col: Column of document identifiers: strings, or integers, which are written in decimal.
        """

        text_col: str
        id_col: str

        def native_step(self) -> tuple[object, ...]:
            """See `Step`."""
            return ("split_paragraphs", self.text_col, self.id_col)

    @dataclass(frozen=True, slots=True)
    class Hash:
        """Add a column of hexadecimal digests.

        Args:
            input_col: Column of strings or bytes.
            output_col: Name of the result, replaced when it exists.
            algo: Hash function.
        """

        input_col: str
        output_col: str
        algo: HashAlgorithm | str = DEFAULT_HASH_ALGORITHM

        def native_step(self) -> tuple[object, ...]:
            """See `Step`."""
            return ("hash", self.input_col, self.output_col, str(self.algo))

    @dataclass(frozen=True, slots=True)
    class SelectColumns:
        """Keep the named columns, in that order.

        Args:
            columns: Names of columns.
        """

        columns: Sequence[str]

        def native_step(self) -> tuple[object, ...]:
            """See `Step`."""
            return ("select_columns", list(self.columns))

    @dataclass(frozen=True, slots=True)
    class CleanText:
        """Add a column of canonical spellings: lower case, no ASCII punctuation, single spaces, trimmed.

        Args:
            input_col: Column of texts.
            output_col: Name of the result, replaced when it exists.
        """

        input_col: str
        output_col: str

        def native_step(self) -> tuple[object, ...]:
            """See `Step`."""
            return ("clean_text", self.input_col, self.output_col)

    @dataclass(frozen=True, slots=True)
    class MinHash:
        """Add a column of MinHash signatures.

        The share of equal slots of two signatures estimates the Jaccard similarity `J` of their shingle sets with
        standard error `sqrt(J (1 - J) / num_perms)` (Broder, 1997). The result is a list column of `num_perms` values:
        `uint64` for the compat kind, `uint32` for fast32.

        Args:
            input_col: Column of texts.
            output_col: Name of the result, replaced when it exists.
            num_perms: Slots in a signature, 1 to 65,536.
            ngram_size: Units in a shingle, at least 1. A text with fewer units is one shingle.
            ngram_kind: What the units are.
            seed: Seed of the permutations, 0 to 2^64 - 1. Only signatures of one seed compare.
            kind: Which formula.
        """

        input_col: str
        output_col: str
        num_perms: int = 286
        ngram_size: int = 5
        ngram_kind: NgramKind | str = NgramKind.Word
        seed: int = 42
        kind: MinHashKind | str = MinHashKind.COMPAT

        def native_step(self) -> tuple[object, ...]:
            """See `Step`."""
            perms = _count("num_perms", self.num_perms)
            size = _count("ngram_size", self.ngram_size)
            seed = _count("seed", self.seed)
            columns = (self.input_col, self.output_col)
            return ("minhash", *columns, str(self.kind), perms, str(self.ngram_kind), size, seed)

    @dataclass(frozen=True, slots=True)
    class MinHashLSH:
        """Add a column of buckets, one a band of the signature.

        Documents that share a bucket are candidates for near duplicates; `similarity.lsh_match_probability` says how
        likely that is. A bucket is XXH3-64 of the band's slots in little-endian bytes; the result is a list column of
        `num_bands` `uint64` values.

        Args:
            input_col: Column of signatures (list of `uint64` or `uint32`).
            output_col: Name of the result, replaced when it exists.
            num_bands: Number of bands; must divide the signature's length.
        """

        input_col: str
        output_col: str
        num_bands: int = 26

        def native_step(self) -> tuple[object, ...]:
            """See `Step`."""
            return ("minhash_lsh", self.input_col, self.output_col, _count("num_bands", self.num_bands))


def transform(batch: Batch, steps: Sequence[Step], *, threads: int = 1) -> Batch:  # noqa: UP047
    """Run steps over a batch, or over each batch of a table.

    Batches of 4,096 to 16,384 rows are a good size.

    Args:
        batch: Columns to read.
        steps: Steps in order; each sees the columns the ones before it left.
        threads: Threads that share the rows of a MinHash step; the result does not depend on it.

    Returns:
        A batch (or table) with the columns that the last step left.

    Raises:
        ColumnNotFoundError: When a step names a column that does not exist.
        ColumnTypeError: When a column has a type its step cannot read.
        ParameterError: When a step's parameter is out of range.
        ParseError: When a string column holds bytes that are not UTF-8.
        BatchTooLargeError: When a result column would pass 2^31 - 1 bytes or values.
        TypeError: When `batch` or a step is something else.

    Example:
        >>> import pyarrow as pa
        >>> batch = pa.record_batch({"text": ["Hello,  World!", None]})
        >>> steps = [Transformation.CleanText("text", "clean"), Transformation.Hash("clean", "digest", "xxh3_64")]
        >>> transform(batch, steps).select(["clean", "digest"]).to_pylist()
        [{'clean': 'hello world', 'digest': 'd447b1ea40e6988b'}, {'clean': None, 'digest': None}]
    """
    if _count("threads", threads) == 0:
        raise ParameterError(name="threads", value="0", expected="at least 1")
    prepared = [_native_step(step) for step in steps]
    if isinstance(batch, pa.RecordBatch):
        return pa.record_batch(native.transform(batch, prepared, threads))
    if isinstance(batch, pa.Table):
        whole = batch.to_batches() or [pa.RecordBatch.from_pylist([], batch.schema)]
        return pa.Table.from_batches([pa.record_batch(native.transform(part, prepared, threads)) for part in whole])
    raise TypeError(
        f"cannot transform: type={type(batch).__name__}; expected a pyarrow RecordBatch or Table. "
        "Build one with pyarrow.record_batch."
    )


def shingle_hashes(
    text: str,
    *,
    ngram_size: int = 5,
    ngram_kind: NgramKind | str = NgramKind.Word,
    kind: MinHashKind | str = MinHashKind.COMPAT,
) -> list[int]:
    """The 64-bit shingle hashes that MinHash samples, in text order, repeats kept.

    Useful to compute an exact Jaccard similarity for a few pairs.

    Args:
        text: Text to cut up.
        ngram_size: Units in a shingle, at least 1.
        ngram_kind: What the units are.
        kind: Which MinHash kind's hashes.

    Raises:
        ParameterError: When `ngram_size` is 0 or a name is unknown.

    Example:
        >>> len(shingle_hashes("a b c d", ngram_size=3))
        2
    """
    return native.shingle_hashes(text, str(kind), str(ngram_kind), _count("ngram_size", ngram_size))


def _native_step(step: Step) -> tuple[object, ...]:
    read = getattr(step, "native_step", None)
    if read is None:
        raise TypeError(
            f"cannot run a step: type={type(step).__name__}; expected a member of dupekit.Transformation. "
            "Pass for instance Transformation.Hash('text', 'digest')."
        )
    return read()


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"bad parameter: {name}={value!r}; expected an integer. Pass a whole number.")
    if not 0 <= value < 1 << 64:
        raise ParameterError(name=name, value=str(value), expected="0 to 2^64 - 1")
    return value
