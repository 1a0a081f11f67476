import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import (
    ArtifactFieldError,
    ArtifactTypeMismatchError,
    CorruptRecordError,
    RecordFormatError,
    RecordNotFoundError,
)
from marin.execution import Artifact, read_record
from marin.execution.artifact import Artifact as BaseArtifact
from marin.execution.layout import StepLayout
from marin.execution.records import ArtifactRecord, AttemptRecord
from marin.execution.step_status import Status, StatusRecord, parse_status, read_status, write_status


def write(path, name, value):
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, name), "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_a_record_survives_the_trip():
    record = ArtifactRecord(name="a", version="dev", result={"x": 1}, deps=["b@dev"], dep_digests=[None])
    assert ArtifactRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_unknown_fields_are_ignored(tmp_path):
    path = write(tmp_path, ".artifact.json", {"name": "a", "record_format": 2, "colour": "red"})
    assert read_record(path).name == "a"


def test_a_record_without_a_format_is_the_first_one(tmp_path):
    assert read_record(write(tmp_path, ".artifact.json", {"name": "a", "version": "dev"})).record_format == 1


def test_a_bare_payload_becomes_the_result(tmp_path):
    record = read_record(write(tmp_path, ".artifact.json", {"tokens": 7}))
    assert record.result == {"tokens": 7} and record.record_format == 0


def test_a_legacy_info_file_is_understood_but_a_schedule_time_stub_is_not(tmp_path):
    info = {"name": "old", "config": {"a": 1}, "output_path": "/x", "dependencies": ["/y"]}
    record = read_record(write(tmp_path / "one", ".executor_info", info))
    assert (record.name, record.deps, record.config) == ("old", ["/y"], {"a": 1})
    assert read_record(write(tmp_path / "two", ".executor_info", {**info, "executor_version": "step_runner"})) is None


def test_a_newer_record_is_refused(tmp_path):
    with pytest.raises(RecordFormatError, match="newest known here is 2"):
        read_record(write(tmp_path, ".artifact.json", {"name": "a", "record_format": 3}))


@pytest.mark.parametrize("text", ["", "{", '{"name": "a"', "[1]", "null", '{"name": 5, "version": "dev"}'])
def test_a_torn_record_is_an_error_and_never_absent(tmp_path, text):
    with pytest.raises(CorruptRecordError):
        read_record(write(tmp_path, ".artifact.json", text))


def test_a_record_that_is_not_utf8_is_an_error(tmp_path):
    (tmp_path / ".artifact.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CorruptRecordError, match="UTF-8"):
        read_record(str(tmp_path))


def test_an_attempt_survives_the_trip():
    attempt = AttemptRecord(attempt="a1", epoch=2, step="x@dev", output_path="/x", error={"type": "E"})
    assert AttemptRecord.from_json({**attempt.to_json(), "new": 1}) == attempt


@given(
    st.builds(
        StatusRecord,
        status=st.sampled_from(Status),
        epoch=st.integers(0, 9),
        attempt=st.text(st.characters(codec="utf-8"), max_size=9),
        message=st.text(st.characters(codec="utf-8"), max_size=30),
        interrupted=st.booleans(),
        causes=st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=2),
    )
)
def test_a_status_survives_the_trip(tmp_path_factory, record):
    layout = StepLayout(str(tmp_path_factory.mktemp("s") / "v"))
    write_status(layout, record)
    assert read_status(layout) == record
    with open(layout.status) as file:
        assert file.readline() == record.status.value + "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SUCCESS", Status.SUCCESS),
        ("SUCCESS\n", Status.SUCCESS),
        ('{"status": "RUNNING"}\n{"status": "FAILED", "message": "x"}\n', Status.FAILED),
        ("some log line\nanother\nSUCCESS\n", Status.SUCCESS),
    ],
)
def test_older_status_files_are_understood(text, expected):
    assert parse_status("x", text).status is expected


@pytest.mark.parametrize("text", ["", "\n\n", "MAYBE", '{"status": "MAYBE"}', "SUCCESS\n{torn"])
def test_a_status_that_says_nothing_is_an_error(text):
    with pytest.raises(CorruptRecordError):
        parse_status("x", text)


def test_a_newer_status_is_refused():
    with pytest.raises(RecordFormatError):
        parse_status("x", 'SUCCESS\n{"record_format": 9}')


def test_a_status_inside_the_output_is_read_where_there_is_no_control_folder(tmp_path):
    write(tmp_path / "v", ".executor_status", "SUCCESS")
    assert read_status(StepLayout(str(tmp_path / "v"))).status is Status.SUCCESS


class Nested(Artifact):
    rate: float
    shape: tuple[int, ...] = ()
    names: list[str] = ()
    best: float | None = None


@given(
    st.builds(
        dict,
        rate=st.floats(),
        shape=st.lists(st.integers()).map(tuple),
        names=st.lists(st.text()),
        best=st.one_of(st.none(), st.floats(allow_nan=False)),
    )
)
def test_declared_fields_come_back_typed(tmp_path_factory, values):
    artifact = Nested(**values)
    path = str(tmp_path_factory.mktemp("a"))
    record = ArtifactRecord(name="a", result_type="", result=artifact.result_payload())
    write(path, ".artifact.json", record.to_json())
    loaded = Nested.load(path)
    assert repr(loaded.rate) == repr(artifact.rate)
    assert (loaded.shape, loaded.names, loaded.best, loaded.path) == (
        values["shape"],
        values["names"],
        values["best"],
        path,
    )


def test_the_wrong_type_is_refused_at_load_but_plain_artifact_opens_anything(tmp_path):
    path = write(tmp_path, ".artifact.json", {"name": "a", "result_type": "other.Thing", "result": {}})
    with pytest.raises(ArtifactTypeMismatchError) as caught:
        Nested.load(path)
    assert caught.value.actual == "other.Thing"
    assert BaseArtifact.load(path).path == path


def test_a_missing_field_is_named(tmp_path):
    path = write(tmp_path, ".artifact.json", {"name": "a", "result": {"shape": [1]}})
    with pytest.raises(ArtifactFieldError) as caught:
        Nested.load(path)
    assert caught.value.field == "rate"


def test_a_field_of_another_type_is_named(tmp_path):
    path = write(tmp_path, ".artifact.json", {"name": "a", "result": {"rate": "fast"}})
    with pytest.raises(ArtifactFieldError, match="expected float"):
        Nested.load(path)


def test_data_without_a_record_opens_and_nothing_at_all_does_not(tmp_path):
    assert Artifact.load(str(tmp_path)).record is None
    with pytest.raises(RecordNotFoundError):
        Artifact.load(str(tmp_path / "missing"))


def test_a_result_that_is_not_json_is_refused():
    class Odd(Artifact):
        thing: object

    with pytest.raises(ArtifactFieldError) as caught:
        Odd(thing=[{"x": object()}]).result_payload()
    assert caught.value.field == "thing[0].x"
