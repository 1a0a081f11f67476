"""Members of zip archives, and every way an archive can be bad."""

import zipfile
from pathlib import Path

import pytest
from zephyr import Dataset, ZephyrContext, _zip_read, load_zip_members
from zephyr.errors import CorruptInputError, DatasetError, MissingInputError, RecordTooLargeError

MEMBERS = {"train/a.jsonl": b'{"n": 1}\n', "train/b.TXT": b"", "test.jsonl": b'{"n": 2}\n' * 400}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.mkdir("train")
        for name, data in MEMBERS.items():
            out.writestr(name, data)
    return path


def test_members_come_in_the_order_of_the_archive(ctx: ZephyrContext, archive: Path) -> None:
    out = ctx.execute(Dataset.from_files(str(archive.parent / "*.zip")).flat_map(load_zip_members))
    assert out.results == [{"filename": name, "content": data} for name, data in MEMBERS.items()]
    assert out.counters["zephyr/records_in"] == 3
    assert out.counters["zephyr/bytes_in"] == sum(map(len, MEMBERS.values()))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("*.jsonl", ["train/a.jsonl", "test.jsonl"]), ("train/*", ["train/a.jsonl", "train/b.TXT"]), ("*.txt", [])],
)
def test_a_pattern_chooses_by_the_whole_name(archive: Path, pattern: str, names: list[str]) -> None:
    assert [member["filename"] for member in load_zip_members(str(archive), pattern)] == names


def test_members_are_read_one_by_one(archive: Path) -> None:
    members = load_zip_members(str(archive))
    assert next(members)["content"] == MEMBERS["train/a.jsonl"]
    members.close()


def test_bad_archives_are_errors_that_name_the_file(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = archive.read_bytes()
    at = good.index(b"test.jsonl") + len("test.jsonl") + 3
    bad = {"cut.zip": good[:-30], "none.zip": b"", "flipped.zip": good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]}
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptInputError, match=name):
            list(load_zip_members(str(tmp_path / name)))
    with pytest.raises(MissingInputError, match="absent"):
        list(load_zip_members(str(tmp_path / "absent.zip")))
    with pytest.raises(CorruptInputError, match="directory"):
        list(load_zip_members(str(tmp_path)))
    monkeypatch.setattr(_zip_read, "_MEMBER_LIMIT_BYTES", 100)
    with pytest.raises(RecordTooLargeError, match="3600"):
        list(load_zip_members(str(archive)))
    assert len(list(load_zip_members(str(archive), "train/*"))) == 2  # what is not asked for does not matter


@pytest.mark.parametrize(("offset", "value", "reason"), [(8, 1, "is encrypted"), (10, 97, "not supported")])
def test_members_that_python_cannot_unpack_say_so(archive: Path, offset: int, value: int, reason: str) -> None:
    data = bytearray(archive.read_bytes())
    entry = data.index(b"PK\x01\x02")
    while (entry := data.find(b"PK\x01\x02", entry)) >= 0:  # the directory's entries: flags at 8, method at 10
        data[entry + offset] = value
        entry += 4
    archive.write_bytes(data)
    with pytest.raises(DatasetError, match=rf"filename='train/a.jsonl'.*{reason}"):
        list(load_zip_members(str(archive), "*.jsonl"))
