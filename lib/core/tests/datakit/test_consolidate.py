"""Splits are a pure function of the group, and dealing documents to their files is one of the documents."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.datakit._split_sink import SPLIT_COLUMN, SplitSink
from marin.datakit.consolidate import SPLITS, split_of
from marin.datakit.recipe import SplitRule


@given(st.text())
def test_a_group_always_lands_in_the_same_split(group):
    assert split_of(group, SplitRule()) == split_of(group, SplitRule()) in SPLITS


def test_shares_are_close_to_what_was_asked_for():
    rule = SplitRule(validation_percent=10, test_percent=20)
    dealt = [split_of(f"group-{i}", rule) for i in range(20_000)]
    # Three standard deviations of a binomial share at n = 20,000 are below 0.9 %.
    assert dealt.count("test") / 200 == pytest.approx(20, abs=0.9)
    assert dealt.count("validation") / 200 == pytest.approx(10, abs=0.9)


def test_another_salt_deals_anew():
    groups = [f"group-{i}" for i in range(1000)]
    assert [split_of(g, SplitRule()) for g in groups] != [split_of(g, SplitRule(salt="other")) for g in groups]


@pytest.mark.parametrize("shares", [(0, 5), (5, 0), (60, 40), (-1, 5)])
def test_shares_that_leave_a_split_empty_are_refused(shares):
    with pytest.raises(ValueError, match="bad split"):
        SplitRule(validation_percent=shares[0], test_percent=shares[1])


SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
DEALT = ["train", "train", "test", "validation"]


def rows(count, text="x"):
    return [{"id": f"{n:04d}", "text": text * (n % 7), SPLIT_COLUMN: DEALT[n % 4]} for n in range(count)]


def test_dealt_files_have_equal_bytes_however_the_rows_arrive(tmp_path):
    documents, digests = rows(100, text="word " * 60_000), set()
    for size in (1, 7, 1000):
        sink, folder = SplitSink(SPLITS, SCHEMA), tmp_path / f"part-{size}"
        blocks = [documents[start : start + size] for start in range(0, len(documents), size)]
        assert sink.write(iter([pa.RecordBatch.from_pylist(block) for block in blocks]), str(folder)) == 100
        sink.check(str(folder), 100)
        for split in SPLITS:
            file = pq.ParquetFile(folder / f"{split}.parquet")
            assert file.schema_arrow == SCHEMA
            assert file.read().column("id").to_pylist() == [
                row["id"] for row in documents if row[SPLIT_COLUMN] == split
            ]
            assert file.num_row_groups > 1 or split != "train"  # 45 MB of text
        digests.add(hashlib.sha256(b"".join((folder / f"{split}.parquet").read_bytes() for split in SPLITS)).digest())
    assert len(digests) == 1


def test_a_split_without_documents_is_an_empty_file_and_a_wrong_count_is_noticed(tmp_path):
    sink, folder = SplitSink(SPLITS, SCHEMA), str(tmp_path / "part-0")
    assert sink.write(iter([]), folder) == 0
    assert all(pq.read_table(f"{folder}/{split}.parquet").schema == SCHEMA for split in SPLITS)
    with pytest.raises(ValueError, match="holds 0 documents, expected 3"):
        sink.check(folder, 3)
