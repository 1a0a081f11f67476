"""How many empty tasks a second a pool gets through, and how long a pool takes to start.

There is no rival: the figure is what scheduling costs on top of the work. Prints one JSON line; `value` is tasks per
second over `--tasks` tasks that do nothing, with the pool already up.

    python benchmarks/bench_tasks.py [--smoke] [--tasks 10000] [--workers 2]
"""

import argparse
import json
import os
import platform
import time

from zephyr import Dataset, ZephyrContext


def nothing(item: int) -> int:
    return item


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few tasks")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    tasks = 200 if options.smoke else options.tasks
    rates, starts = [], []
    for _ in range(1 if options.smoke else 3):
        began = time.perf_counter()
        with ZephyrContext(options.workers) as ctx:
            ctx.execute(Dataset.from_list(list(range(options.workers))).map(nothing))
            starts.append(time.perf_counter() - began)
            began = time.perf_counter()
            out = ctx.execute(Dataset.from_list(list(range(tasks)), shards=tasks).map(nothing))
            rates.append(tasks / (time.perf_counter() - began))
            assert out.results == list(range(tasks))
    report = {
        "name": "zephyr_empty_tasks_per_second",
        "value": round(sorted(rates)[len(rates) // 2], 1),
        "unit": "tasks/s",
        "spread": [round(min(rates), 1), round(max(rates), 1)],
        "n": len(rates),
        "pool_start_s": round(sorted(starts)[len(starts) // 2], 3),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
