"""The same program on a Ray cluster: equal bytes, and a killed or stopped worker changes nothing there either."""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fray.backends import connect_backend
from zephyr import Dataset, ZephyrContext, counters
from zephyr.coordinator import Policy

QUIET = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 80 << 20}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'marin-fray[ray]'"),
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes by number"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    os.environ["MARIN_PROGRESS"] = "0"
    # A test of another package may have connected this process; its Ray serves as well.
    options = {} if ray.is_initialized() else {"address": "local", "num_cpus": 2, **QUIET}
    client = connect_backend("ray", **options)
    yield client
    client.shutdown()


def tag(row: dict[str, Any]) -> dict[str, Any]:
    counters.increment("tagged")
    return {**row, "tag": f"{row['k'] % 5}"}


def program(context: ZephyrContext, folder: Path) -> tuple[dict[str, bytes], dict[str, float]]:
    rows = [{"k": n * 7 % 101, "n": n} for n in range(600)]
    ds = Dataset.from_list(rows, shards=5).map(tag).deduplicate("k", num_output_shards=3)
    ds = ds.group_by("tag", sort_by="n", reducer=lambda k, it: {"tag": k, "n": [r["n"] for r in it]})
    out = context.execute(ds.write_parquet(str(folder / "{shard}.parquet")))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}, out.counters


def test_the_same_program_gives_the_same_bytes_on_ray(cluster: Any, tmp_path: Path) -> None:
    scratch = str(tmp_path / "scratch")
    inline = program(ZephyrContext(inline=True, chunk_storage_prefix=scratch), tmp_path / "inline")
    with ZephyrContext(max_workers=2, client=cluster, chunk_storage_prefix=scratch) as context:
        assert len({*context.execute(Dataset.from_list([1, 2]).map(lambda n: os.getpid())).results, os.getpid()}) >= 2
        assert program(context, tmp_path / "ray") == inline
    assert os.listdir(scratch) == []


def test_killed_and_stopped_workers_on_ray_are_replaced(cluster: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def troubled(n: int) -> int:
        for at, sign in ((3, signal.SIGKILL), (8, signal.SIGSTOP)):
            marker = Path(folder, f"done-{at}")
            if n == at and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), sign)
        return n * n

    policy = Policy(heartbeat_timeout_s=4.0, suspect_after_s=2.0)
    scratch = str(tmp_path / "scratch")
    with ZephyrContext(max_workers=2, client=cluster, chunk_storage_prefix=scratch, policy=policy) as context:
        out = context.execute(Dataset.from_list(list(range(10)), shards=5).map(troubled))
    assert out.results == [n * n for n in range(10)]
    assert out.stages[0]["dropped"] >= 1
