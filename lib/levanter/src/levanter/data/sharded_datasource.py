"""Documents in files: finding the files, naming their shards, reading their text.

A source file is jsonl, json, parquet or plain text; gzip, zstandard, bzip2 and xz are undone by suffix. Documents come
as batches of strings, because everything downstream (tokenising, flattening) works on batches. A plain text file is one
document.

A record without usable text (bad JSON, bad UTF-8, missing, null or non-string field) is a :class:`BadRecordError` with
file and line, or is skipped and counted, as the caller chooses.
"""

import bz2
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from levanter.data.errors import BadRecordError, SourceError

OnBadRecord = Literal["raise", "skip"]

DOCUMENTS_PER_BATCH = 1024
CHARACTERS_PER_BATCH = 8 * 1024 * 1024

_COMPRESSIONS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".zst": lambda raw: _ZstdStream(raw),
    ".zstd": lambda raw: _ZstdStream(raw),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}
_FORMATS = (".jsonl", ".json", ".parquet", ".txt")
_BRACE_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_DAMAGE = (EOFError, OSError, zlib.error, zstandard.ZstdError, lzma.LZMAError)


@dataclasses.dataclass
class ReadCounts:
    """What happened to the records of a source.

    Attributes:
        records: Documents given out.
        skipped: Bad records that were skipped.
    """

    records: int = 0
    skipped: int = 0


def expand_urls(urls: Sequence[str]) -> list[str]:
    """Turn patterns into the sorted list of files they name.

    Args:
        urls: Paths or URLs; ``{1..128}`` ranges, globs, and folders (all source files below) are expanded. The order
            of the patterns is kept; files of one pattern are sorted.
    Raises:
        SourceError: Files are missing (all of them are listed), a pattern matches nothing, a file is of unknown kind,
            or one file is named twice.
    """
    files: list[str] = []
    missing = []
    for url in urls:
        for pattern in _expand_braces(url):
            found = _expand_one(pattern)
            files += found
            if not found:
                missing.append(pattern)
    if missing:
        raise SourceError("nothing there", missing, "existing files, or patterns that match some")
    unknown = [path for path in files if format_of(path) is None]
    if unknown:
        raise SourceError("unknown file format", unknown, f"one of {', '.join(_FORMATS)}, compressed or not")
    twice = sorted({path for path in files if files.count(path) > 1}) if len(set(files)) < len(files) else []
    if twice:
        raise SourceError("named more than once", twice, "every file once")
    return files


def _expand_braces(url: str) -> list[str]:
    """``a{1..3}`` to ``a1 a2 a3``; a first number with leading zeros sets the width."""
    match = _BRACE_RANGE.search(url)
    if match is None:
        return [url]
    first, last = match.group(1), match.group(2)
    width = len(first) if first.startswith("0") else 0
    numbers = range(int(first), int(last) + 1)
    return [
        path for n in numbers for path in _expand_braces(f"{url[: match.start()]}{n:0{width}d}{url[match.end() :]}")
    ]


def _expand_one(pattern: str) -> list[str]:
    filesystem, native = fsspec.core.url_to_fs(pattern)
    if any(character in native for character in "*?["):
        found = sorted(path for path in filesystem.glob(native) if not filesystem.isdir(path))
    elif filesystem.isdir(native):
        found = sorted(path for path in filesystem.find(native) if format_of(path) and not _is_sidecar(path))
    else:
        found = [native] if filesystem.exists(native) else []
    if "://" not in pattern:
        return found
    return [filesystem.unstrip_protocol(path) for path in found]


def _is_sidecar(path: str) -> bool:
    """Records and hidden files that lie beside data but are none."""
    name = os.path.basename(path)
    return name.startswith((".", "_")) or name in ("provenance.json", "artifact.json", "shard_ledger.json")


def format_of(path: str) -> str | None:
    """``".jsonl"``, ``".json"``, ``".parquet"``, ``".txt"``, or ``None`` when the suffix says nothing."""
    stem, suffix = os.path.splitext(path)
    if suffix in _COMPRESSIONS:
        suffix = os.path.splitext(stem)[1]
    return suffix if suffix in _FORMATS else None


def file_digest(path: str) -> str:
    """sha256 of the bytes of a file: the identity of an input, wherever it lies."""
    sha = hashlib.sha256()
    with _open_raw(path) as raw:
        while block := raw.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def read_documents(
    path: str, *, text_key: str = "text", on_bad_record: OnBadRecord = "raise", counts: ReadCounts | None = None
) -> Iterator[list[str]]:
    """Texts of the documents of a file, in order, in batches.

    Args:
        path: A source file.
        text_key: Field of the text in jsonl, json and parquet.
        on_bad_record: Raise at the first bad record, or skip and count it.
        counts: Updated while reading.
    Raises:
        BadRecordError: A bad record and ``on_bad_record`` is ``"raise"``; or a damaged file, always.
        SourceError: The file is of unknown kind, or a parquet file lacks the field.
    """
    counts = ReadCounts() if counts is None else counts
    batch: list[str] = []
    characters = 0
    for line, text, problem in _records(path, text_key):
        if problem is not None or text is None:
            if on_bad_record == "raise":
                raise BadRecordError(path, line, problem or "no text", "" if text is None else text)
            counts.skipped += 1
            continue
        counts.records += 1
        batch.append(text)
        characters += len(text)
        if len(batch) >= DOCUMENTS_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


_Record = tuple[int, str | None, str | None]
"""Line (or row) number from 1, text, and what is wrong with it (the text is then an excerpt)."""


def _records(path: str, text_key: str) -> Iterator[_Record]:
    kind = format_of(path)
    if kind == ".parquet":
        return _parquet_records(path, text_key)
    if kind == ".jsonl":
        return _jsonl_records(path, text_key)
    if kind == ".json":
        return _json_records(path, text_key)
    if kind == ".txt":
        return _text_records(path)
    raise SourceError("unknown file format", [path], f"one of {', '.join(_FORMATS)}")


def _jsonl_records(path: str, text_key: str) -> Iterator[_Record]:
    number = 0
    try:
        with _open_decompressed(path) as stream:
            for number, raw in enumerate(stream, 1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    yield _json_record(line, number, text_key)
    except _DAMAGE as error:
        raise BadRecordError(path, number + 1, f"file is cut off or damaged ({error})") from error


def _json_record(line: bytes, number: int, text_key: str) -> _Record:
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        return number, repr(line[:80]), f"not UTF-8 ({error.reason} at byte {error.start})"
    except json.JSONDecodeError as error:
        return number, repr(line[:80]), f"not JSON ({error.msg} at column {error.colno})"
    return _text_of(record, number, text_key)


def _text_of(record: Any, number: int, text_key: str) -> _Record:
    if not isinstance(record, dict):
        return number, repr(record)[:80], "not a JSON object"
    if text_key not in record:
        return number, repr(sorted(record))[:80], f"no field {text_key!r}"
    return _checked_text(record[text_key], number, text_key)


def _checked_text(text: Any, number: int, text_key: str) -> _Record:
    if not isinstance(text, str):
        return number, repr(text)[:80], f"field {text_key!r} is a {type(text).__name__}, not a string"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return number, repr(text[max(error.start - 20, 0) : error.start + 20]), "lone surrogate"
    return number, text, None


def _json_records(path: str, text_key: str) -> Iterator[_Record]:
    """A ``.json`` file: one array, one object, or lines after all."""
    with _open_decompressed(path) as stream:
        content = stream.read().removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        return
    try:
        document = json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError):
        for number, line in enumerate(content.splitlines(), 1):
            if line.strip():
                yield _json_record(line, number, text_key)
        return
    for number, record in enumerate(document if isinstance(document, list) else [document], 1):
        yield _text_of(record, number, text_key)


def _text_records(path: str) -> Iterator[_Record]:
    try:
        with _open_decompressed(path) as stream:
            content = stream.read()
    except _DAMAGE as error:
        raise BadRecordError(path, 1, f"file is cut off or damaged ({error})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        yield line, repr(content[max(error.start - 20, 0) : error.start + 20]), f"not UTF-8 ({error.reason})"
        return
    if text:
        yield 1, text, None


def _parquet_records(path: str, text_key: str) -> Iterator[_Record]:
    with _open_raw(path) as raw:
        try:
            table = pq.ParquetFile(raw)
        except pa.ArrowInvalid as error:
            raise BadRecordError(path, 1, f"not a parquet file ({error})") from error
        if text_key not in table.schema_arrow.names:
            raise SourceError(f"no column {text_key!r} among {table.schema_arrow.names}", [path], "the text column")
        row = 0
        for batch in table.iter_batches(batch_size=DOCUMENTS_PER_BATCH, columns=[text_key]):
            for text in batch.column(0).to_pylist():
                row += 1
                yield _checked_text(text, row, text_key)


class _ZstdStream(io.RawIOBase):
    """Decompressed bytes of concatenated zstandard frames; unlike the library's reader, it notices a cut-off frame."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = None
        self._input = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer``; 0 at the end.

        Raises:
            EOFError: The last frame is not complete.
        """
        while not self._ready:
            chunk = self._input or self._raw.read(1 << 17)
            self._input = b""
            if not chunk:
                if self._frame is not None:
                    raise EOFError("the last zstandard frame is not complete")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(chunk))
            if self._frame.eof:
                self._input = self._frame.unused_data
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


@contextlib.contextmanager
def _open_raw(path: str) -> Iterator[IO[bytes]]:
    filesystem, native = fsspec.core.url_to_fs(path)
    with filesystem.open(native, "rb") as raw:
        yield raw


@contextlib.contextmanager
def _open_decompressed(path: str) -> Iterator[IO[bytes]]:
    with _open_raw(path) as raw:
        opener = _COMPRESSIONS.get(os.path.splitext(path)[1])
        if opener is None:
            yield raw
        else:
            with opener(raw) as plain:
                yield io.BufferedReader(plain, 1 << 20)
