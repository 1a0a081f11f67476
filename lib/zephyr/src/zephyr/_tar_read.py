"""Tar files in the WebDataset layout to records: consecutive members that share a name up to the first dot are one.

The record is `{"__key__": name, ext: contents, ...}`: bytes, or with `decode` text for txt, a value for json, and a
number for cls. The file is read as a stream, so it may be compressed, and is never held whole.
"""

import tarfile
from collections.abc import Iterator
from typing import Any

import msgspec

from zephyr import counters
from zephyr._blocks import Block, batch_of
from zephyr._files import read_decompressed
from zephyr._jsonl import row_mask
from zephyr._ops import Load
from zephyr._reading import ChunkStream
from zephyr._trace import Trace
from zephyr.errors import BadRecordError, CorruptInputError, RecordTooLargeError

_BLOCK_BYTES = 8 << 20
_BLOCK_RECORDS = 1024
_EXCERPT = 120


def split_name(name: str) -> tuple[str, str]:
    """Key and extension of a member.

    Example:
        >>> split_name("train/0001.seg.png"), split_name("a.b/c.txt"), split_name("README")
        (('train/0001', 'seg.png'), ('a.b/c', 'txt'), ('README', ''))
    """
    folder, sep, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + sep + stem, extension


def read_tar(path: str, load: Load, trace: Trace, *, limit_bytes: int) -> Iterator[Block]:
    """Read one file.

    Raises:
        CorruptInputError: the archive is damaged or ends early.
        BadRecordError: two members of one key have the same extension, or one cannot be decoded; names the record.
        RecordTooLargeError: the members of one key are larger than `limit_bytes` together.
    """
    block: list[Any] = []
    size, first, number = 0, 1, 0
    for number, (record, record_bytes) in enumerate(_records(path, load, limit_bytes), 1):
        block.append(record)
        size += record_bytes
        if size >= _BLOCK_BYTES or len(block) >= _BLOCK_RECORDS:
            yield from _finish(path, block, first, load, trace)
            block, size, first = [], 0, number + 1
    if block:
        yield from _finish(path, block, first, load, trace)


def _finish(path: str, rows: list[Any], first: int, load: Load, trace: Trace) -> Iterator[Block]:
    last = first + len(rows) - 1
    trace.begin(path, "record", first, last, range(first, last + 1) if trace.exact else None)
    counters.increment("zephyr/records_in", len(rows))
    if load.predicate is not None:
        mask = row_mask(rows, load.predicate)
        rows = [row for row, keep in zip(rows, mask, strict=True) if keep]
        trace.keep(mask)
    if load.columns is not None:
        rows = [{name: row[name] for name in load.columns if name in row} for row in rows]
    if rows:
        yield rows if load.as_rows else batch_of(rows, operation="load_webdataset", where=path)


def _records(path: str, load: Load, limit_bytes: int) -> Iterator[tuple[dict[str, Any], int]]:
    decode = bool(dict(load.options).get("decode", True))
    record: dict[str, Any] = {}
    size = 0
    number = 1
    for name, data in _members(path, limit_bytes):
        key, extension = split_name(name)
        if not extension:
            continue
        if record and record["__key__"] != key:
            yield record, size
            record, size, number = {}, 0, number + 1
        record.setdefault("__key__", key)
        size += len(data)
        if size > limit_bytes:
            raise RecordTooLargeError(path, number, size, limit_bytes)
        if extension in record:
            raise BadRecordError(path, number, f"two members with extension {extension!r}", name)
        record[extension] = _decoded(path, number, name, extension, data) if decode else data
    if record:
        yield record, size


def _members(path: str, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
    stream = ChunkStream(read_decompressed(path))
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                if member.size > limit_bytes:
                    raise RecordTooLargeError(path, 0, member.size, limit_bytes)
                contents = archive.extractfile(member)
                assert contents is not None, "a regular member has contents"
                data = contents.read()
                if len(data) != member.size:
                    raise CorruptInputError(path, f"member {member.name} ends early", stream.offset)
                yield member.name, data
    except tarfile.ReadError as error:
        if stream.offset == 0:
            return
        raise CorruptInputError(path, f"damaged tar archive: {error}", stream.offset) from error


def _decoded(path: str, number: int, name: str, extension: str, data: bytes) -> Any:
    kind = extension.rpartition(".")[2].lower()
    try:
        match kind:
            case "txt" | "text":
                return data.decode()
            case "json":
                return msgspec.json.decode(data)
            case "cls":
                return int(data)
    except ValueError as error:
        excerpt = data[:_EXCERPT].decode("utf-8", "backslashreplace")
        raise BadRecordError(path, number, f"member {name} is no {kind}: {error}", excerpt) from error
    return data
