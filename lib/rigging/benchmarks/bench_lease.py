"""What a lease costs: acquire and release, heartbeat, and the compare-and-swap below, beside a plain durable write.

The rival is what careful code does without us: write a temporary, fsync, rename, fsync the folder
(``baseline_write_ms``), on the same folder, interleaved. First it is checked that both leave the same content.

usage: python lib/rigging/benchmarks/bench_lease.py [--smoke] [--folder DIR]
Prints one JSON line. Times are milliseconds per operation: median over rounds, spread is the interquartile range.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable

from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.lease import Lease
from rigging.provenance import environment_report

PAYLOAD = b"x" * 256


def plain_durable_write(path: str, data: bytes) -> None:
    """The rival: atomic and durable, without compare-and-swap."""
    temp = path + ".tmp"
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    os.replace(temp, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def time_ms(operation: Callable[[], object], count: int) -> float:
    """Return milliseconds per call over ``count`` calls."""
    start = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - start) / count * 1e3


def spread(samples: list[float]) -> float:
    """Return the interquartile range."""
    quartiles = statistics.quantiles(samples, n=4)
    return quartiles[2] - quartiles[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few seconds")
    parser.add_argument("--folder", help="where to write; default the system's temporary folder")
    options = parser.parse_args()
    rounds, count = (5, 10) if options.smoke else (25, 40)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cas = conditional_object(os.path.join(folder, "object"))
        version = [cas.write(PAYLOAD, expected_version=None)]
        plain = os.path.join(folder, "plain")
        plain_durable_write(plain, PAYLOAD)
        with open(plain, "rb") as left, open(os.path.join(folder, "object"), "rb") as right:
            assert left.read() == right.read() == PAYLOAD
        lease = Lease(os.path.join(folder, "lease"))

        def swap() -> None:
            version[0] = cas.write(PAYLOAD, expected_version=version[0])

        def cycle() -> None:
            assert lease.try_acquire() is not None
            lease.release()

        operations = {
            "acquire_release": cycle,
            "compare_and_swap": swap,
            "baseline_write": lambda: plain_durable_write(plain, PAYLOAD),
        }
        samples: dict[str, list[float]] = {name: [] for name in operations} | {"heartbeat": []}
        for _ in range(rounds):
            for name, operation in operations.items():
                samples[name].append(time_ms(operation, count))
            lease.try_acquire()
            samples["heartbeat"].append(time_ms(lease.refresh, count))
            lease.release()
    report = environment_report()
    result = {
        "name": "lease_acquire_release",
        "value": round(statistics.median(samples["acquire_release"]), 4),
        "unit": "ms",
        "spread": round(spread(samples["acquire_release"]), 4),
        "n": rounds * count,
        "machine": f"{report['cpu']} x{report['cpu_count']}",
        "lock_hash": report["lock_digest"],
        "rival_version": f"os, Python {platform.python_version()}",
    }
    result |= {f"{name}_ms": round(statistics.median(values), 4) for name, values in samples.items()}
    print(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
