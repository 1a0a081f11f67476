"""One shuffle target that holds nearly everything, reduced whole and cut, in turn, outputs checked equal.

The reducer is a Python function that costs about as much per record as parsing one does. There is no rival: what is
compared is the same pipeline with and without the cut. Prints one JSON line; `value` is the reducing stage's time whole
over its time cut.

    python benchmarks/bench_skew.py [--smoke] [--rows N] [--workers N] [--repeats N]
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from zephyr import Dataset, Policy, ZephyrContext
from zephyr._keys import encode_key
from zephyr._shuffle.write import hash_targets

TARGETS = 4
LIMITS = Policy(skew_factor=2.0, skew_min_bytes=1 << 20, skew_pieces=8)


def pipeline(shards: list[tuple[int, int]], heavy: list[int], out: Path) -> Dataset:
    def make(span: tuple[int, int]) -> Iterator[dict[str, object]]:
        for at in range(*span):
            # 19 of 20 rows have keys of one target.
            k = heavy[at * 7919 % len(heavy)] if at % 20 else at
            yield {"k": k, "n": at, "text": f"{at:07d} " * 20}

    def reducer(k: int, rows: Iterator[dict[str, Any]]) -> dict[str, int]:
        words = sum(len(set(row["text"].split())) + sum(map(ord, row["text"])) % 7 for row in rows)
        return {"k": k, "n": words}

    ds = Dataset.from_list(shards, shards=len(shards)).flat_map(make)
    return ds.group_by("k", reducer=reducer, num_output_shards=TARGETS).write_jsonl(str(out / "{shard}.jsonl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few rows, one repeat")
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows, repeats = (40_000, 1) if options.smoke else (options.rows, options.repeats)
    codes = pa.array([encode_key(k) for k in range(rows)], pa.binary())
    heavy = [k for k, target in enumerate(hash_targets(codes, TARGETS)) if target == 1][: rows // 20]
    step = rows // 8
    shards = [(at, min(rows, at + step)) for at in range(0, rows, step)]
    seconds: dict[str, list[float]] = {"whole": [], "cut": []}
    cut: object = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for name, policy in (("whole", Policy(skew_pieces=1)), ("cut", LIMITS)):
                with ZephyrContext(options.workers, policy=policy) as ctx:
                    ctx.execute(Dataset.from_list([0, 1]).map(lambda x: time.sleep(0.2)))
                    began = time.perf_counter()
                    stages = ctx.execute(pipeline(shards, heavy, Path(folder, name))).stages
                    last: dict[str, Any] = stages[-1]
                    seconds[name].append(last["seconds"])
                    total = time.perf_counter() - began
                print(f"{name}: {total:.1f} s in all, {last['seconds']} s of it reducing", flush=True)
                cut = last["targets_cut"] or cut
            found = [[Path(folder, name, f"{at}.jsonl").read_bytes() for at in range(TARGETS)] for name in seconds]
            assert found[0] == found[1], "the bytes are equal"
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    report = {
        "name": "zephyr_skewed_reduce_speedup",
        "value": round(medians["whole"] / medians["cut"], 2),
        "unit": "x",
        "seconds": seconds,
        "targets_cut": cut,
        "rows": rows,
        "workers": options.workers,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
