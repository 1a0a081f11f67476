"""The command ``fsutil`` over every store, its bad input, and that a copy is what was sent."""

import gzip
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys

import pytest
from rigging.errors import StoragePathError, TransferVerificationError
from rigging.filesystem import transfer
from rigging.filesystem.atomic import atomic_stream
from rigging.filesystem.storage_path import StoragePath
from rigging.fsutil.cli import main

pytestmark = pytest.mark.filterwarnings("default")
BIG = os.urandom(1 << 20) * 9  # more than one block, and more than what goes in one request


@pytest.fixture
def run(capfdbinary):
    """Run a command; return exit code, stdout and stderr."""

    def go(*words):
        capfdbinary.readouterr()
        code = main([str(word) for word in words])
        out, err = capfdbinary.readouterr()
        assert b"Traceback" not in err
        return code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    return go


def as_json(answer):
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


@pytest.mark.interop
def test_copy_list_count_digest_and_remove_in_every_store(store_url, run, tmp_path):
    local = tmp_path / "in"
    (local / "sub").mkdir(parents=True)
    (local / "small.txt").write_bytes(b"hello\n")
    (local / "sub" / "big.bin").write_bytes(BIG)
    there = f"{store_url}/data"

    sent = as_json(run("cp", "-r", local, there, "--json"))
    assert sent["bytes"] == len(BIG) + 6 and {f["verified"] for f in sent["files"]} <= {"store digest", "read back"}
    listed = as_json(run("ls", "-R", "--json", there))
    assert [(StoragePath(e["path"]).name, e["size"]) for e in listed] == [("small.txt", 6), ("big.bin", len(BIG))]
    assert all(e["modified"] for e in listed)
    top = as_json(run("ls", "--json", there))
    assert {(StoragePath(e["path"]).name, e["kind"]) for e in top} == {("small.txt", "file"), ("sub", "folder")}
    counted = as_json(run("du", "--json", there))
    assert [(u["size"], u["files"]) for u in counted] == [(6, 1), (len(BIG), 1), (len(BIG) + 6, 2)]
    assert run("cat", f"{there}/small.txt")[1] == "hello\n"
    assert run("hash", "--hex", f"{there}/small.txt")[1].split()[0] == "b1946ac92492d2347c6235b4d2611184"
    assert run("hash", f"{there}/small.txt")[1].split()[0] == "sZRqySSS0jR8YjW00mERhA=="

    back = tmp_path / "back"
    assert run("cp", "-r", f"{there}/sub", f"{there}/small.txt", str(back) + "/")[0] == 0
    assert (back / "sub" / "big.bin").read_bytes() == BIG and (back / "small.txt").read_bytes() == b"hello\n"
    other = f"{store_url}/other"
    assert run("cp", "-r", there, other)[0] == 0  # within one store
    assert run("mv", f"{other}/small.txt", f"{other}/moved.txt")[0] == 0
    assert sorted(as_json(run("find", "--json", f"{other}/*.txt")))[0].endswith("moved.txt")
    assert run("rm", "-r", there)[0] == 0
    assert run("ls", there)[0] == 2 and run("ls", other)[0] == 0


@pytest.mark.interop
def test_rsync_copies_what_differs_and_deletes_only_when_told(store_url, run, tmp_path):
    local = tmp_path / "in"
    local.mkdir()
    for name in "abc":
        (local / name).write_text(name)
    there = f"{store_url}/tree"
    assert len(as_json(run("rsync", local, there, "--json"))["files"]) == 3
    (local / "a").write_text("A!")
    (local / "b").unlink()
    plan = as_json(run("rsync", local, there, "--json", "--dry-run", "--delete", "--checksum"))
    assert [StoragePath(p).name for p in plan["copy"]] == ["a"] and plan["same"] == 1
    assert [StoragePath(p).name for p in plan["delete"]] == ["b"] and StoragePath(f"{there}/b").exists()
    done = as_json(run("rsync", local, there, "--json", "--delete"))
    assert len(done["files"]) == 1 and not StoragePath(f"{there}/b").exists()
    assert StoragePath(f"{there}/a").read_text() == "A!"
    assert run("rsync", local, local / "inside")[0] == 2
    assert run("rsync", local / "a", there)[0] == 2


def test_a_failed_copy_leaves_the_target_as_it_was(tmp_path):
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(BIG)
    target.write_bytes(b"old")
    seen = []

    def stop(size):
        seen.append(size)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        transfer.copy_file(str(source), str(target), advance=stop)
    assert target.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["s", "t"]


@pytest.mark.interop
def test_a_failed_write_leaves_no_half_object(store_url):
    with pytest.raises(OSError, match="interrupted"), atomic_stream(f"{store_url}/half") as stream:
        for _ in range(2):
            stream.write(BIG)  # more than one part: some are at the store already
        raise OSError("interrupted")
    assert not StoragePath(f"{store_url}/half").exists()
    with atomic_stream(f"{store_url}/whole") as stream:
        for _ in range(2):
            stream.write(BIG)
    assert StoragePath(f"{store_url}/whole").size() == 2 * len(BIG)


@pytest.mark.interop
def test_a_large_file_goes_up_in_parts_and_is_checked(store_url, tmp_path):
    source, told = tmp_path / "s", []
    source.write_bytes(BIG * 4)
    done = transfer.copy_file(str(source), f"{store_url}/large", advance=told.append)
    assert done.verified in ("store digest", "read back") and sum(told) == done.size == 4 * len(BIG)
    assert done.md5 == hashlib.md5(BIG * 4).hexdigest() == transfer.digest_of(f"{store_url}/large").hex()


def test_a_copy_that_does_not_match_is_an_error_and_changes_nothing(tmp_path):
    source = tmp_path / "s"
    source.write_bytes(BIG)
    copied = tmp_path / "t"
    copied.write_bytes(b"old")

    def corrupt(size):
        # Called after the block was handed over; the source's digest is fixed by now.
        for path in tmp_path.glob("t.tmp.*"):
            with open(path, "ab") as stream:
                stream.write(b"!")

    with pytest.raises(TransferVerificationError, match="expected 9437184 bytes"):
        transfer.copy_file(str(source), str(copied), advance=corrupt)
    assert copied.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["s", "t"]


def test_sources_targets_and_folders_are_told_apart(run, tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    (tmp_path / "d").mkdir()
    assert run("cp", tmp_path / "a", tmp_path / "b", tmp_path / "d")[0] == 0
    assert sorted(os.listdir(tmp_path / "d")) == ["a", "b"]
    assert run("cp", "-n", tmp_path / "b", tmp_path / "d" / "a")[0] == 0
    assert (tmp_path / "d" / "a").read_text() == "a"
    assert run("cp", tmp_path / "[ab]", tmp_path / "new")[0] == 0
    assert sorted(os.listdir(tmp_path / "new")) == ["a", "b"]
    with pytest.raises(StoragePathError, match="one source for it"):
        transfer.plan_copies([str(tmp_path / "a"), str(tmp_path / "d/a")], str(tmp_path / "new"), recursive=False)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["no-such-command"],
        ["cat"],
        ["cat", "{dir}/nothing"],
        ["cat", "{dir}"],
        ["head", "-n", "0", "{dir}/f"],
        ["head", "-n", "many", "{dir}/f"],
        ["cp", "{dir}/f", "{dir}/f"],
        ["cp", "{dir}", "{dir}/x"],
        ["cp", "-r", "{dir}", "{dir}/x"],
        ["cp", "{dir}/f", "{dir}/g", "{dir}/h"],
        ["cp", "{dir}/none*", "{dir}/x"],
        ["ls", "nonsense://x/y"],
        ["ls", "s3://"],
        ["rm", "{dir}"],
        ["rm", "/"],
        ["rm", "-r", "/"],
        ["rm", "-r", "."],
        ["hash", "{dir}"],
        ["hash", "--algorithm", "rot13", "{dir}/f"],
        ["schema", "{dir}/f"],
        ["cat", "{dir}/x.zst"],
        ["clean-temp", ""],
    ],
)
def test_bad_input_is_exit_2_with_a_message_and_nothing_done(run, tmp_path, words):
    (tmp_path / "f").write_text("f")
    (tmp_path / "g").write_text("g")
    (tmp_path / "h").write_text("h")
    (tmp_path / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    before = sorted(os.listdir(tmp_path))
    if "schema" in words and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("the extra parquet is not installed")
    code, out, err = run(*[word.format(dir=tmp_path) for word in words])
    assert code == 2 and out == "" and err.strip()
    assert sorted(os.listdir(tmp_path)) == before


def test_compressed_files_are_decoded_unless_raw(run, tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b"line %d\n" % n for n in range(50))))
    assert run("head", "-n", "2", path)[1] == "line 0\nline 1\n"
    assert as_json(run("head", "-n", "1", "--json", path)) == ["line 0"]
    assert run("cat", path)[1].count("\n") == 50
    assert main(["cat", "--raw", str(path)]) == 0
    path.write_bytes(b"not gzip at all")
    code, _, err = run("cat", path)
    assert code != 0 and "error:" in err


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="the extra parquet is not installed")
def test_parquet_rows_and_schema(run, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": range(1000), "text": ["ä"] * 1000}), path, row_group_size=100, compression="zstd")
    assert run("head", "-n", "1", path)[1] == '{"id": 0, "text": "ä"}\n'
    rows = as_json(run("head", "-n", "250", "--json", path))
    assert [row["id"] for row in rows] == list(range(250))
    (schema,) = as_json(run("schema", "--json", path))
    assert (schema["rows"], schema["row_groups"], schema["compression"]) == (1000, 10, ["ZSTD"])
    assert schema["columns"][0] == {"name": "id", "type": "int64", "nullable": True}
    assert "id: int64" in run("schema", path)[1]
    assert run("cat", path)[1].count("\n") == 1000


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="the extra parquet is installed")
def test_without_the_extra_the_error_names_it(run, tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    code, _, err = run("head", tmp_path / "x.parquet")
    assert code == 2 and "marin-rigging[parquet]" in err


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"line\n" * 1_000_000)
    shown = subprocess.Popen(
        [sys.executable, "-m", "rigging.fsutil.cli", "cat", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert shown.stdout is not None and shown.stderr is not None
    assert shown.stdout.read(5) == b"line\n"
    shown.stdout.close()
    assert shown.wait(60) == 0 and shown.stderr.read() == b""
    shown.stderr.close()


def test_progress_is_live_on_a_terminal_only(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    (tmp_path / "a").write_bytes(b"x" * 1000)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["cp", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "copy: 1k/1k B (100%)" in screen.getvalue() and "copied 1 files, 1kB, each checked" in screen.getvalue()


def test_secrets_in_a_url_do_not_reach_the_screen(run):
    code, _, err = run("ls", "nonsense://user:hunter2hunter2@host/x")
    assert code == 2 and "hunter2" not in err


COPY = "import sys; from rigging.fsutil.cli import main; print('go', flush=True); main(['cp', *sys.argv[1:]])"


def test_a_copy_that_is_killed_leaves_the_target_as_it_was(tmp_path, python_child):
    """The source is a pipe that never ends, so the copy is surely in the middle."""
    pipe, target = tmp_path / "pipe", tmp_path / "target"
    target.write_bytes(b"old")
    os.mkfifo(pipe)
    child = python_child(COPY, str(pipe), str(target))
    assert child.line() == "go"
    with open(pipe, "wb", buffering=0) as writing:
        writing.write(BIG)
        while not list(tmp_path.glob("target.tmp.*")):
            assert child.process.poll() is None
        child.kill()
    assert target.read_bytes() == b"old"
    (tmp_path / "source").write_bytes(b"new")
    assert main(["cp", str(tmp_path / "source"), str(target)]) == 0 and target.read_bytes() == b"new"


@pytest.mark.slow
@pytest.mark.interop
def test_a_store_that_does_not_answer_is_said_in_one_line(s3_bucket):
    """Against a port where nobody listens: what the libraries log, and their stack traces, stay off the screen."""
    words = [sys.executable, "-m", "rigging.fsutil.cli", "cat", f"{s3_bucket}/x"]
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and len(done.stderr.strip().splitlines()) == 1
