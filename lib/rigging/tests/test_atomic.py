import errno
import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.errors import DestinationExistsError
from rigging.filesystem.atomic import (
    atomic_rename,
    unique_temp_path,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
)


def test_content_appears_at_once_and_parents_are_created(tmp_path):
    target = tmp_path / "new" / "deep" / "file.txt"
    with atomic_rename(str(target)) as temp:
        with open(temp, "w") as stream:
            stream.write("half")
            assert not target.exists()
            stream.write(" whole")
    assert target.read_text() == "half whole"
    assert os.listdir(target.parent) == ["file.txt"]


def test_a_failing_body_leaves_the_old_content_and_no_temporary(tmp_path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_rename(str(target)) as temp:
        with open(temp, "w") as stream:
            stream.write("new")
        raise KeyboardInterrupt
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_body_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing was written"), atomic_rename(str(tmp_path / "x")):
        pass
    assert os.listdir(tmp_path) == []


def test_a_directory_replaces_a_directory_without_mixing(tmp_path):
    target = tmp_path / "tree"
    for content in ("one", "two"):
        with atomic_rename(str(target)) as temp:
            os.makedirs(os.path.join(temp, "sub"))
            with open(os.path.join(temp, "sub", content), "w") as stream:
                stream.write(content)
    assert os.listdir(target / "sub") == ["two"]
    assert os.listdir(tmp_path) == ["tree"]


def test_a_failed_directory_body_is_cleaned_up_whole(tmp_path):
    target = tmp_path / "tree"
    with pytest.raises(ValueError, match="boom"), atomic_rename(str(target)) as temp:
        os.makedirs(os.path.join(temp, "sub"))
        raise ValueError("boom")
    assert os.listdir(tmp_path) == []


def test_a_directory_never_replaces_a_file(tmp_path):
    target = tmp_path / "x"
    target.write_text("file")
    with pytest.raises(DestinationExistsError), atomic_rename(str(target)) as temp:
        os.makedirs(temp)
    assert target.read_text() == "file"
    assert os.listdir(tmp_path) == ["x"]


def test_a_full_disk_keeps_the_old_content_and_removes_the_temporary(tmp_path, python_child):
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")
    child = python_child(
        """
        import resource, signal, sys
        from rigging.filesystem.atomic import write_bytes_atomic
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_bytes_atomic(sys.argv[1], b"x" * 100_000)
        except OSError as error:
            print(error.errno)
        """,
        str(target),
    )
    assert child.line() == str(errno.EFBIG)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_a_kill_in_the_middle_leaves_the_old_content(tmp_path, python_child):
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")
    child = python_child(
        """
        import sys, time
        from rigging.filesystem.atomic import atomic_rename
        with atomic_rename(sys.argv[1]) as temp:
            with open(temp, "w") as stream:
                stream.write("half")
                stream.flush()
                print("written")
                time.sleep(60)
        """,
        str(target),
    )
    assert child.line() == "written"
    child.kill()
    assert target.read_bytes() == b"old"


@given(st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=255))
def test_a_temporary_name_is_legal_and_in_the_same_folder(name):
    temp = unique_temp_path("/folder/" + name)
    assert temp.rpartition("/")[0] == "/folder"
    assert len(os.fsencode(temp.rpartition("/")[2])) <= 255 or len(os.fsencode(name)) > 255
    assert unique_temp_path("/folder/" + name) != temp


def test_json_is_written_sorted_with_a_newline_and_without_nan(tmp_path):
    target = str(tmp_path / "x.json")
    write_json_atomic(target, {"b": 1, "a": "é"})
    with open(target, encoding="utf-8") as stream:
        text = stream.read()
    assert text == '{\n  "a": "é",\n  "b": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json_atomic(target, {"loss": math.nan})
    assert json.loads(text) == {"a": "é", "b": 1}


def test_text_and_bytes_round_trip_also_on_an_fsspec_store(tmp_path):
    write_text_atomic(f"file://{tmp_path}/a.txt", "ä")
    assert (tmp_path / "a.txt").read_bytes() == "ä".encode()
    write_bytes_atomic("memory://atomic-test/a.bin", b"\x00\xff")
    import fsspec

    store = fsspec.filesystem("memory")
    assert store.cat("/atomic-test/a.bin") == b"\x00\xff"
    assert [entry.rpartition("/")[2] for entry in store.ls("/atomic-test", detail=False)] == ["a.bin"]
