"""CSV files to blocks, through Arrow's parser: types from the first block unless they are given, rows never guessed."""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pacsv

from zephyr import counters
from zephyr._blocks import Block
from zephyr._files import read_decompressed
from zephyr._ops import Load
from zephyr._reading import ChunkStream, finish_batch
from zephyr._trace import Trace
from zephyr.errors import BadRecordError

_BLOCK_BYTES = 4 << 20
_ROW = re.compile(r"Row #(\d+): ?(.*)", re.DOTALL)
_EXCERPT = 120


def read_csv(path: str, load: Load, trace: Trace) -> Iterator[Block]:
    """Read one file with a header line.

    Raises:
        BadRecordError: a row has too few or too many fields, or a value that does not fit the column's type; the line
            is the record's, counted with the header as 1 (quoted line ends inside fields do not count).
        CorruptInputError: the compressed stream is damaged.
    """
    options = dict(load.options)
    skip = load.on_bad_line == "skip"
    bad: list[tuple[int, str, str]] = []

    def on_invalid(row: pacsv.InvalidRow) -> str:
        # The parser calls this from a thread of its own, where counters are not at home.
        reason = f"{row.actual_columns} fields, header has {row.expected_columns}"
        bad.append((row.number or 0, reason, (row.text or "")[:_EXCERPT]))
        return "skip" if skip else "error"

    types = options.get("types")
    convert = pacsv.ConvertOptions(column_types=dict(types) if types else None, strings_can_be_null=True)
    try:
        reader = pacsv.open_csv(
            pa.PythonFile(ChunkStream(read_decompressed(path)), mode="r"),
            pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pacsv.ParseOptions(
                delimiter=options.get("delimiter", ","), newlines_in_values=True, invalid_row_handler=on_invalid
            ),
            convert,
        )
        first = 2
        for batch in reader:
            last = first + batch.num_rows - 1
            trace.begin(path, "record", first, last, range(first, last + 1) if trace.exact else None)
            first = last + 1
            counters.increment("zephyr/records_in", batch.num_rows)
            out = finish_batch(batch, load, trace)
            if out.num_rows:
                yield out
        if bad:
            counters.increment("zephyr/bad_records", len(bad))
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return
        raise _explain(path, error, bad) from error


def _explain(path: str, error: pa.ArrowInvalid, bad: list[tuple[int, str, str]]) -> BadRecordError:
    if bad:
        return BadRecordError(path, *bad[0])
    text = str(error)
    found = _ROW.search(text)
    if found is None:
        return BadRecordError(path, 0, text, "")
    return BadRecordError(path, int(found[1]), f"{found[2]} (pass types= to fix a column's type)", "")
