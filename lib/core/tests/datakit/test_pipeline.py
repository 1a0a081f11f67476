"""The curation stages as pipelines over real files."""

import gzip
import json
from glob import glob
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from marin.datakit.consolidate import consolidate
from marin.datakit.dedup.fuzzy import mark_fuzzy_duplicates
from marin.datakit.download.collect import collect
from marin.datakit.errors import (
    DocumentFieldError,
    EmptyCorpusError,
    SourceNotFoundError,
    UndecodableFileError,
)
from marin.datakit.normalize import normalize
from marin.datakit.recipe import CollectConfig, ConsolidateConfig, FuzzyDedupConfig, NormalizeConfig, SplitRule
from marin.datakit.sources import Source, SourceKind, stdlib_source
from marin.execution.failures import classify
from zephyr import BadRecordError
from zephyr.errors import TaskFailedError


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", "0")


def path_config(tmp_path, pattern, **options):
    source = Source(SourceKind.PATH, str(tmp_path / pattern), licence="CC0-1.0")
    return CollectConfig(str(tmp_path / "out"), str(tmp_path / "scratch"), source, **options)


def documents_of(folder):
    rows = []
    for path in sorted(glob(f"{folder}/documents/*.jsonl.zst")):
        with open(path, "rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file).read().decode()
        rows += [json.loads(line) for line in text.splitlines()]
    return rows


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def test_every_kind_of_file_becomes_documents(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "from jsonl", "id": "j1"}])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "from gzip"}\n'))
    pq.write_table(pa.table({"text": ["from parquet"]}), tmp_path / "c.parquet")
    (tmp_path / "d.txt").write_text("from text\nsecond line\n", encoding="utf-8")
    artifact = collect(path_config(tmp_path, "*.*"))
    rows = documents_of(tmp_path / "out")
    assert sorted(row["text"] for row in rows) == [
        "from gzip",
        "from jsonl",
        "from parquet",
        "from text\nsecond line\n",
    ]
    assert artifact.num_documents == 4
    assert artifact.num_bytes == sum(len(row["text"].encode()) for row in rows)
    assert json.loads((tmp_path / "out" / "source.json").read_text())["licence"] == "CC0-1.0"


def test_a_malformed_line_stops_collection_and_names_file_and_line(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": broken\n', encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"bad\.jsonl.*2"):
        collect(path_config(tmp_path, "*.jsonl"))


def test_skipped_lines_are_counted_in_the_artifact(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "fine"}\n{"text": broken\n{"text": "\xff"}\n')
    artifact = collect(path_config(tmp_path, "*.jsonl", on_bad_line="skip"))
    assert (artifact.num_documents, artifact.num_bad_lines) == (1, 2)


def test_a_glob_that_matches_nothing_is_refused(tmp_path):
    with pytest.raises(SourceNotFoundError, match="0 files of other kinds"):
        collect(path_config(tmp_path, "*.jsonl"))


def test_an_empty_file_is_an_empty_corpus(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(EmptyCorpusError, match="documents_out=0"):
        collect(path_config(tmp_path, "*.jsonl"))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_record_without_the_text_field_names_the_fields_it_has(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", workers)
    write_jsonl(tmp_path / "a.jsonl", [{"body": "x"}])
    with pytest.raises(TaskFailedError, match=r"field='text', found fields \['body'\]") as caught:
        collect(path_config(tmp_path, "*.jsonl"))
    assert isinstance(caught.value.__cause__, DocumentFieldError)
    assert classify(caught.value) == "data"
    assert collect(path_config(tmp_path, "*.jsonl", text_key="body")).num_documents == 1


def test_a_text_file_that_is_not_utf8_names_the_byte(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(TaskFailedError, match="position=3, byte=0xe9") as caught:
        collect(path_config(tmp_path, "*.txt"))
    assert isinstance(caught.value.__cause__, UndecodableFileError)


def test_blank_texts_are_dropped_and_repeats_folded_with_their_names_kept(tmp_path):
    write_jsonl(
        tmp_path / "a.jsonl",
        [{"id": i, "text": t} for i, t in [("b", "same"), ("a", "same"), ("c", " \n"), ("d", "other")]],
    )
    collect(path_config(tmp_path, "*.jsonl"))
    artifact = normalize(NormalizeConfig(str(tmp_path / "norm"), str(tmp_path / "out"), num_shards=2))
    rows = [row for path in sorted(glob(f"{tmp_path}/norm/outputs/main/*")) for row in pq.read_table(path).to_pylist()]
    assert (artifact.num_documents, artifact.num_repeats, artifact.num_blank) == (2, 1, 1)
    by_text = {row["text"]: row for row in rows}
    assert json.loads(by_text["same"]["metadata"])["source_id"] == "a"
    assert by_text["same"]["repeats"] == ["b"]
    assert len({row["id"] for row in rows}) == 2


def test_only_blank_texts_are_an_empty_corpus(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": " "}])
    collect(path_config(tmp_path, "*.jsonl"))
    with pytest.raises(EmptyCorpusError, match="documents_in=1"):
        normalize(NormalizeConfig(str(tmp_path / "norm"), str(tmp_path / "out")))


def run_stages(tmp_path, num_shards=3):
    collect(path_config(tmp_path, "*.jsonl"))
    paths = {name: str(tmp_path / name) for name in ("out", "norm", "dups", "final", "scratch")}
    normalize(NormalizeConfig(paths["norm"], paths["out"], num_shards=num_shards))
    duplicates = mark_fuzzy_duplicates(
        FuzzyDedupConfig(paths["dups"], paths["scratch"], paths["norm"], num_shards=num_shards)
    )
    split = SplitRule(validation_percent=20, test_percent=20)
    return duplicates, consolidate(ConsolidateConfig(paths["final"], paths["norm"], paths["dups"], split=split))


def test_planted_near_duplicates_go_and_everything_else_stays(tmp_path):
    words = [[f"word{i}x{j}" for j in range(200)] for i in range(40)]
    planted = [[*words[i][:150], "edited", *words[i][151:]] for i in range(5)]
    texts = [" ".join(w) for w in words + planted]
    write_jsonl(tmp_path / "a.jsonl", [{"id": f"d{i:03d}", "text": text} for i, text in enumerate(texts)])
    duplicates, final = run_stages(tmp_path)
    assert duplicates.num_duplicates == 5
    assert sum(final.num_documents.values()) == 40
    assert final.num_dropped_duplicates == 5


def test_no_candidates_give_empty_attribute_shards_beside_every_document_shard(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": f"text number {i} " * 30} for i in range(30)])
    duplicates, _ = run_stages(tmp_path)
    assert duplicates.num_duplicates == 0
    names = [
        sorted(p.rsplit("/", 1)[1] for p in glob(f"{tmp_path}/{folder}/outputs/main/*")) for folder in ("norm", "dups")
    ]
    assert names[0] == names[1] != []


def test_an_empty_split_is_refused_with_the_remedy(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "one document only"}])
    with pytest.raises(EmptyCorpusError, match="Give more documents"):
        run_stages(tmp_path)


def test_the_standard_library_gives_byte_equal_shards_in_one_process_and_in_two(tmp_path, monkeypatch):
    digests = []
    for workers in ("0", "2"):
        monkeypatch.setenv("ZEPHYR_MAX_WORKERS", workers)
        root = tmp_path / workers
        collect(CollectConfig(f"{root}/out", f"{root}/scratch", stdlib_source(), max_files=24, num_shards=3))
        normalize(NormalizeConfig(f"{root}/norm", f"{root}/out", num_shards=3))
        shards = sorted(glob(f"{root}/out/documents/*") + glob(f"{root}/norm/outputs/main/*"))
        digests.append([Path(path).read_bytes() for path in shards])
    assert digests[0] == digests[1]
    assert len(digests[0]) == 6
