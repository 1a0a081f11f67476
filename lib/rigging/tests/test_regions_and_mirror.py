"""Regions, the budget for reads between them, mirrored files, temporary space."""

import dataclasses
import json
import os
import threading

import pytest
from rigging.data_config import DataConfig, parse_data_config, reset_data_config_cache, use_data_config
from rigging.errors import (
    ConfigError,
    ConfigNotFoundError,
    CrossRegionPathError,
    StoragePathError,
    TransferBudgetExceeded,
    UnsafePathError,
)
from rigging.filesystem import regions, transfer_budget
from rigging.filesystem.mirror import Mirror
from rigging.filesystem.prefix import marin_prefix, marin_region
from rigging.filesystem.region_check import (
    check_gcs_paths_same_region,
    check_path_in_region,
    collect_gcs_paths,
    get_bucket_location,
)
from rigging.filesystem.storage_path import StoragePath
from rigging.filesystem.temp_space import clean_temp, marin_temp_bucket
from rigging.filesystem.transfer_budget import TransferBudget, is_cross_region_url, mirror_budget, record_transfer
from rigging.timing import ManualClock

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    for name in ("MARIN_PREFIX", "MARIN_REGION", "MARIN_CLUSTER", "GCE_METADATA_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MARIN_MIRROR_BUDGET_GB", "MARIN_I_WILL_PAY_FOR_ALL_FEES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(transfer_budget, "_process_budget", None)
    regions.reset_region_cache()
    reset_data_config_cache()
    yield
    regions.reset_region_cache()
    reset_data_config_cache()


def test_the_region_is_what_is_set_then_what_the_machine_says_then_what_the_store_says(metadata, monkeypatch):
    assert marin_region() is None
    monkeypatch.setenv("MARIN_PREFIX", "gs://example-europe-west4/x")
    assert marin_region() == "europe-west4"
    monkeypatch.setenv("GCE_METADATA_HOST", metadata["host"])
    regions.reset_region_cache()
    assert marin_region() == marin_region() == "us-central2" and metadata["hits"] == 1
    monkeypatch.setenv("MARIN_REGION", "asia-east1")
    assert marin_region() == "asia-east1"


@pytest.mark.parametrize(
    "change",
    [{"text": "nonsense"}, {"flavor": None}, {"status": 404}, {"status": 302}, {"text": "x" * 5000}, {"text": ""}],
)
def test_an_answer_that_is_no_zone_is_no_region(metadata, change):
    metadata.update(change)
    assert regions.region_from_metadata(metadata["host"]) is None
    assert regions.region_from_metadata("127.0.0.1:1", timeout_s=1) is None


def test_the_root_is_the_prefix_then_the_clusters_then_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert marin_prefix() == str(tmp_path / "marin_store")
    folder = tmp_path / "config" / "marin" / "clusters"
    folder.mkdir(parents=True)
    (folder / "lab.yaml").write_text(
        "data:\n  region_buckets:\n"
        "    us-east1: {bucket: example-us, store: gcs}\n    eu: {bucket: example-eu, store: s3}\n"
    )
    monkeypatch.setenv("MARIN_CLUSTER", "lab")
    assert marin_prefix() == str(tmp_path / "marin_store"), "in no known region the local folder stays"
    monkeypatch.setenv("MARIN_REGION", "us-east1")
    assert marin_prefix() == "gs://example-us"
    monkeypatch.setenv("MARIN_REGION", "eu")
    assert marin_prefix() == "s3://example-eu"
    monkeypatch.setenv("MARIN_PREFIX", "/explicit")
    assert marin_prefix() == "/explicit"
    monkeypatch.setenv("MARIN_CLUSTER", "labb")
    monkeypatch.delenv("MARIN_PREFIX")
    with pytest.raises(ConfigNotFoundError, match=r"expected one of \['lab'\]"):
        marin_prefix()


@pytest.mark.parametrize(
    "section",
    [
        {"regoin_buckets": {}},
        {"region_buckets": []},
        {"region_buckets": {"us": {"store": "gcs"}}},
        {"region_buckets": {"us": {"bucket": "b", "store": "floppy"}}},
        {"temp": {"ttl_days": 7}},
        {"temp": {"ttl_days": [0]}},
        {"temp": {"ttl_days": []}},
        {"temp": {"ttl_days": [True]}},
        {"temp": {"ttl_days": ["7"]}},
    ],
)
def test_a_wrong_data_section_is_refused_and_says_where(section):
    with pytest.raises(ConfigError, match="expected"):
        parse_data_config(section, "lab.yaml")


CONFIG = DataConfig(region_buckets={"us-central2": "gs://example-here", "europe-west4": "gs://example-there"})


def test_only_a_known_other_region_is_across(monkeypatch):
    with use_data_config(CONFIG):
        assert not is_cross_region_url("gs://example-there/x"), "our own region is not known"
        monkeypatch.setenv("MARIN_REGION", "us-central2")
        assert is_cross_region_url("gs://example-there/x") and is_cross_region_url("gs://b-asia-east1/x")
        for near in ("gs://example-here/x", "gs://no-idea/x", "/a/b", "gs://b-us-central2/x"):
            assert not is_cross_region_url(near)


def test_a_refused_transfer_is_not_counted_and_threads_do_not_pass_the_limit():
    budget = TransferBudget(1000)
    refused = []

    def read():
        for _ in range(50):
            try:
                budget.record(7, "gs://example-there/x")
            except TransferBudgetExceeded as error:
                refused.append(error.bytes_used)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.used_bytes == 994 and len(refused) == 200 - 142 and set(refused) == {994}
    budget.record(6, "s3://other/y")
    assert budget.by_bucket() == {"gs://example-there": 994, "s3://other": 6}


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "ten"])
def test_a_wrong_limit_in_the_environment_is_refused(monkeypatch, text):
    monkeypatch.setenv("MARIN_MIRROR_BUDGET_GB", text)
    with pytest.raises(ConfigError, match="MARIN_MIRROR_BUDGET_GB"):
        transfer_budget.current_budget()


def test_the_limit_of_the_process_is_ten_gigabytes_or_what_is_set(monkeypatch):
    assert transfer_budget.current_budget().limit_bytes == 10_000_000_000
    for name, value, limit in (
        ("MARIN_MIRROR_BUDGET_GB", "0.5", 500_000_000),
        ("MARIN_I_WILL_PAY_FOR_ALL_FEES", "1", None),
    ):
        monkeypatch.setenv(name, value)
        monkeypatch.setattr(transfer_budget, "_process_budget", None)
        assert transfer_budget.current_budget().limit_bytes == limit
    with mirror_budget(0.001) as budget:
        assert budget.limit_bytes == 1_000_000
    with pytest.raises(ConfigError), mirror_budget(-1):
        pass


@pytest.fixture
def two_regions(gcs_bucket, monkeypatch, tmp_path):
    """A bucket that the configuration puts in another region, with an object of 9 MB, and a local root."""
    payload = os.urandom(1 << 20) * 9
    StoragePath(f"{gcs_bucket}/data/big.bin").write_bytes(payload)
    StoragePath(f"{gcs_bucket}/data/sub/small.txt").write_bytes(b"small")
    monkeypatch.setenv("MARIN_REGION", "us-central2")
    with use_data_config(DataConfig(region_buckets={"europe-west4": gcs_bucket})):
        yield gcs_bucket, payload, str(tmp_path / "here")


@pytest.mark.interop
def test_bytes_from_another_region_are_charged_as_they_are_read(two_regions):
    bucket, payload, here = two_regions
    big = StoragePath(f"{bucket}/data/big.bin")
    with mirror_budget(0.02) as budget:
        with big.open("rb") as stream:
            assert stream.read(10) == payload[:10]
        assert budget.used_bytes == 4 << 20, "a ranged read is charged what it fetches, not the object"
        with big.open("rb") as stream:
            stream.seek(len(payload) - 5)
            assert stream.read() == payload[-5:]
        assert budget.used_bytes == (4 << 20) + 5
        assert big.read_bytes() == payload
        assert budget.used_bytes == (4 << 20) + 5 + len(payload)
        assert StoragePath(f"{bucket}/data/sub/small.txt").read_text() == "small"
        with pytest.raises(TransferBudgetExceeded) as caught:
            big.read_bytes()
        assert caught.value.path == str(big) and budget.used_bytes < 20_000_000
        with pytest.raises(TransferBudgetExceeded):
            big.download_to(here)
        assert not os.path.exists(here)
    with mirror_budget(0.0), pytest.raises(TransferBudgetExceeded):
        record_transfer(1, str(big))
    StoragePath(f"{bucket}/written").write_text("writes are free")


@pytest.mark.interop
def test_a_mirrored_file_is_copied_once_checked_and_charged(two_regions):
    bucket, payload, here = two_regions
    mirror = Mirror(here)
    with mirror_budget(1) as budget:
        place = mirror.resolve("mirror://data/big.bin")
        assert str(place) == f"{here}/data/big.bin" and place.read_bytes() == payload
        assert budget.used_bytes == len(payload)
        StoragePath(f"{bucket}/data/big.bin").rm()
        assert mirror.resolve("data/big.bin").read_bytes() == payload and budget.used_bytes == len(payload)
        folder = mirror.resolve("data")
        assert folder.isdir(), "what is there counts as it is"
        assert mirror.ls("data") == ["big.bin", "sub"]
    with mirror_budget(0), pytest.raises(TransferBudgetExceeded):
        mirror.resolve("data/sub/small.txt")
    assert not os.path.exists(f"{here}/data/sub/small.txt")


def test_a_folder_that_was_half_copied_is_completed(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    for name in ("a", "b", "c"):
        StoragePath(f"{there}/set/{name}").write_text(name)
    mirror = Mirror(str(here), [str(there)])
    real = Mirror._fetch

    def die(self, relative, source, local):
        self._mark(relative).write_text("x")
        (local / "a").write_text("a")
        raise OSError("killed")

    monkeypatch.setattr(Mirror, "_fetch", die)
    with pytest.raises(OSError, match="killed"):
        mirror.resolve("set")
    monkeypatch.setattr(Mirror, "_fetch", real)
    assert sorted(os.listdir(here / "set")) == ["a"]
    assert sorted(entry.name for entry in mirror.resolve("set").ls()) == ["a", "b", "c"]
    assert [name for name in os.listdir(here / ".mirror_locks") if name.endswith(".partial")] == []


RACE = """
import sys
from rigging.filesystem.mirror import Mirror
mirror = Mirror(sys.argv[1], [sys.argv[2]])
print("ready")
sys.stdin.readline()
print(len(list(mirror.resolve("set").ls())), mirror.resolve("big").size())
"""


def test_processes_that_need_it_together_get_one_whole_copy(tmp_path, python_child):
    there, here = tmp_path / "there", tmp_path / "here"
    for n in range(30):
        StoragePath(f"{there}/set/{n}").write_text("x" * 1000)
    StoragePath(f"{there}/big").write_bytes(os.urandom(1 << 20) * 8)
    children = [python_child(RACE, str(here), str(there)) for _ in range(3)]
    assert [child.line() for child in children] == ["ready"] * 3
    for child in children:
        child.send("go")
    assert [child.line() for child in children] == [f"30 {8 << 20}"] * 3
    assert not [name for _, _, names in os.walk(here) for name in names if ".tmp." in name]


def test_a_name_that_is_nowhere_is_remembered_for_a_while(tmp_path):
    clock = ManualClock()
    mirror = Mirror(str(tmp_path / "here"), [str(tmp_path / "there")], clock=clock)
    with pytest.raises(FileNotFoundError, match="in none of"):
        mirror.resolve("x")
    StoragePath(str(tmp_path / "there/x")).write_text("x")
    with pytest.raises(FileNotFoundError, match="a moment ago"):
        mirror.resolve("x")
    clock.advance(60)
    assert mirror.resolve("x").read_text() == "x"
    with pytest.raises(FileNotFoundError):
        mirror.ls("nothing")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "mirror:///etc", "mirror://"])
def test_a_path_that_leaves_the_root_is_refused(tmp_path, path):
    with pytest.raises(UnsafePathError):
        Mirror(str(tmp_path), []).resolve(path)
    with pytest.raises(StoragePathError):
        Mirror(str(tmp_path), []).resolve("gs://example/x")


def test_the_days_of_temporary_files_are_rounded_up(caplog):
    config = DataConfig(root="/store", ttl_days=(30, 1, 7), temp_path="scratch")
    with use_data_config(config):
        assert marin_temp_bucket(1) == "/store/scratch/ttl=1d"
        assert marin_temp_bucket(2, "a/b") == "/store/scratch/ttl=7d/a/b"
        assert marin_temp_bucket(31).endswith("ttl=30d") and "longest life is 30 days" in caplog.text
        for days in (0, -1):
            with pytest.raises(ConfigError):
                marin_temp_bucket(days)
        with pytest.raises(StoragePathError):
            marin_temp_bucket(1, "/absolute")


def test_temporary_files_go_when_their_days_are_over(store_url_local_or_s3):
    root = store_url_local_or_s3
    for days, name in ((1, "x"), (7, "y")):
        StoragePath(marin_temp_bucket(days, name, source_prefix=root)).write_text("data")
    StoragePath(root + "/tmp/not-ours/z").write_text("kept")
    clock = ManualClock()
    clock.advance(StoragePath(marin_temp_bucket(1, "x", source_prefix=root)).mtime() + 2 * 86_400 - clock.time())
    planned = clean_temp(root, dry_run=True, clock=clock)
    assert [StoragePath(path).name for path in planned.removed] == ["x"] and planned.kept == 1 and planned.size == 4
    assert StoragePath(planned.removed[0]).exists()
    assert clean_temp(root, clock=clock).removed == planned.removed
    assert not StoragePath(planned.removed[0]).exists()
    clock.advance(6 * 86_400)
    assert [StoragePath(path).name for path in clean_temp(root, clock=clock).removed] == ["y"]
    assert StoragePath(root + "/tmp/not-ours/z").exists()


@pytest.fixture(params=["local", "s3"])
def store_url_local_or_s3(request, tmp_path):
    return str(tmp_path / "store") if request.param == "local" else request.getfixturevalue("s3_bucket")


def test_the_command_cleans_too(tmp_path, capsys):
    from rigging.fsutil.cli import main

    old = StoragePath(marin_temp_bucket(1, "x", source_prefix=str(tmp_path)))
    old.write_text("data")
    os.utime(str(old), (0, 0))
    assert main(["clean-temp", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [str(old)] and not old.exists()


@dataclasses.dataclass
class Settings:
    cache: StoragePath
    nested: dict


def test_settings_that_name_another_region_are_found_by_name(monkeypatch):
    config = [Settings(StoragePath("gs://b-us-central2/c"), {"eval": ["/local", "gs://b-europe-west4/e"], "n": 3})]
    assert [where for where, _ in collect_gcs_paths(config)] == ["0.cache", "0.nested.eval.1"]
    check_gcs_paths_same_region(config)
    with pytest.raises(ConfigError, match="MARIN_REGION"):
        check_gcs_paths_same_region(config, local_ok=False)
    monkeypatch.setenv("MARIN_REGION", "us-central2")
    with pytest.raises(CrossRegionPathError, match=r"0\.nested\.eval\.1.*Name a copy"):
        check_gcs_paths_same_region(config, local_ok=False)
    check_gcs_paths_same_region(config, skip_if_prefix_contains=("eval",))


@pytest.mark.interop
def test_a_store_tells_where_its_bucket_lies(gcs_bucket, s3_bucket):
    from rigging.filesystem._adapters.s3 import s3_client

    assert get_bucket_location(f"{gcs_bucket}/x") == "us-central1" and get_bucket_location(s3_bucket) == "us-east-1"
    name = f"example-{os.urandom(4).hex()}"
    s3_client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert get_bucket_location(f"s3://{name}/x") == "eu-west-1"
    with pytest.raises(CrossRegionPathError, match="'cache'"):  # the server puts every bucket into us-central1
        check_path_in_region(f"{gcs_bucket}/x", "europe-west4", where="cache")
    check_path_in_region(f"{gcs_bucket}/x", "us")
    for url in ("gs://example-no-such-bucket", "s3://example-no-such-bucket"):
        with pytest.raises(OSError, match="cannot tell where"):
            get_bucket_location(url)
