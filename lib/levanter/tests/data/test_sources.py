import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from levanter.data.errors import BadRecordError, SourceError
from levanter.data.sharded_datasource import ReadCounts, expand_urls, format_of, read_documents

TEXTS = ["first", "zweite é", "third\nwith newline", ""]


def jsonl(texts):
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def read(path, **kwargs):
    return [text for batch in read_documents(str(path), **kwargs) for text in batch]


WRITERS = {
    "a.jsonl": jsonl,
    "a.jsonl.gz": lambda texts: gzip.compress(jsonl(texts)),
    "a.jsonl.zst": lambda texts: zstandard.compress(jsonl(texts[:2])) + zstandard.compress(jsonl(texts[2:])),
    "a.jsonl.zstd": lambda texts: zstandard.compress(jsonl(texts)),
    "a.json": lambda texts: json.dumps([{"text": text} for text in texts], indent=2).encode(),
    "b.json": jsonl,
}


@pytest.mark.parametrize("name", WRITERS)
def test_documents_come_back_whatever_the_container(tmp_path, name):
    (tmp_path / name).write_bytes(WRITERS[name](TEXTS))
    assert read(tmp_path / name) == TEXTS


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_of_every_string_type_is_read(tmp_path, kind):
    column = pa.array(TEXTS).cast(kind) if not pa.types.is_dictionary(kind) else pa.array(TEXTS).dictionary_encode()
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": column}), tmp_path / "a.parquet", row_group_size=2)
    assert read(tmp_path / "a.parquet") == TEXTS


def test_parquet_with_nulls_or_without_the_column(tmp_path):
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(BadRecordError, match="line=2, reason=field 'text' is a NoneType"):
        read(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="no column 'body'"):
        read(tmp_path / "a.parquet", text_key="body")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == []


def test_a_text_file_is_one_document(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffline one\nline two\n".encode())
    assert read(tmp_path / "a.txt") == ["line one\nline two\n"]
    (tmp_path / "b.txt").write_bytes(b"")
    assert read(tmp_path / "b.txt") == []


BAD_LINES = [
    (b'{"text": "cut of', "not JSON"),
    (b'{"text": "\xff"}', "not UTF-8"),
    (b'{"body": "x"}', "no field 'text'"),
    (b'{"text": null}', "NoneType"),
    (b'{"text": 3}', "int"),
    (b'["text"]', "not a JSON object"),
    (b'{"text": "\\ud800"}', "lone surrogate"),
]


@pytest.mark.parametrize("line, reason", BAD_LINES)
def test_a_bad_line_is_named_or_counted(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "good"}\r\n\n' + line + b'\n{"text": "after"}')
    with pytest.raises(BadRecordError, match=reason) as caught:
        read(path)
    assert (caught.value.path, caught.value.line_number) == (str(path), 3)
    counts = ReadCounts()
    assert read(path, on_bad_record="skip", counts=counts) == ["good", "after"]
    assert (counts.records, counts.skipped) == (2, 1)


@pytest.mark.parametrize("name, pack", [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.compress)])
def test_a_truncated_archive_is_an_error_even_when_bad_records_are_skipped(tmp_path, name, pack):
    whole = pack(jsonl([f"document {i} {i * 7919}" for i in range(3000)]))
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadRecordError, match="cut off or damaged"):
        read(tmp_path / name, on_bad_record="skip")


def test_patterns_expand_in_order_and_failures_are_listed_together(tmp_path):
    for name in ("b1.jsonl", "a2.jsonl", "a1.jsonl", "provenance.json"):
        (tmp_path / name).write_bytes(b"")
    root = str(tmp_path)
    assert expand_urls([f"{root}/b*.jsonl", f"{root}/a*.jsonl"]) == [
        f"{root}/b1.jsonl",
        f"{root}/a1.jsonl",
        f"{root}/a2.jsonl",
    ]
    assert expand_urls([f"{root}/a{{1..2}}.jsonl"]) == [f"{root}/a1.jsonl", f"{root}/a2.jsonl"]
    assert expand_urls([root]) == [f"{root}/a1.jsonl", f"{root}/a2.jsonl", f"{root}/b1.jsonl"]
    with pytest.raises(SourceError) as caught:
        expand_urls([f"{root}/missing.jsonl", f"{root}/x*.jsonl", f"{root}/a1.jsonl"])
    assert caught.value.paths == [f"{root}/missing.jsonl", f"{root}/x*.jsonl"]
    with pytest.raises(SourceError, match="more than once"):
        expand_urls([f"{root}/a1.jsonl", f"{root}/a*.jsonl"])
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="unknown file format"):
        expand_urls([f"{root}/a.bin"])


def test_formats_are_told_by_suffix():
    assert format_of("x/y.jsonl.gz") == ".jsonl"
    assert format_of("x/y.parquet") == ".parquet"
    assert format_of("x/y.gz") is None
