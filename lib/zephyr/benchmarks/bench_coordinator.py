"""What the coordinator itself costs: simulated shards and workers, no files, no processes.

There is no rival: the figure bounds how many tasks one driver can hand out. Prints one JSON line; `value` is
microseconds of CPU per task (one assignment and one report) at the largest size.

    python benchmarks/bench_coordinator.py [--smoke]
"""

import argparse
import json
import os
import platform
import time
import tracemalloc

from zephyr import Dataset, compute_plan
from zephyr._task import TaskReport
from zephyr.coordinator import Assign, Coordinator, Finished, TaskSucceeded, WorkerJoined


def simulate(num_shards: int, num_workers: int) -> float:
    """CPU seconds to run one stage of `num_shards` tasks."""
    plan = compute_plan(Dataset.from_list(list(range(num_shards)), shards=num_shards).map(abs).pipeline)
    began = time.process_time()
    machine = Coordinator(plan, "bench")
    steps = machine.start(0.0)
    for at in range(num_workers):
        steps += machine.handle(WorkerJoined(f"w{at}"), 0.0)
    now = 0.0
    while not any(isinstance(step, Finished) for step in steps):
        following = []
        for step in steps:
            if isinstance(step, Assign):
                now += 0.001
                following += machine.handle(TaskSucceeded(step.worker, step.spec, TaskReport()), now)
        steps = following
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes only")
    sizes = [1_000, 10_000] if parser.parse_args().smoke else [10_000, 100_000]
    simulate(100, 8)
    cost = {size: [simulate(size, 256) for _ in range(3)] for size in sizes}
    tracemalloc.start()
    simulate(sizes[-1], 256)
    peak = tracemalloc.get_traced_memory()[1]
    per_task = [seconds / sizes[-1] * 1e6 for seconds in cost[sizes[-1]]]
    report = {
        "name": "zephyr_coordinator_cost_per_task",
        "value": round(sorted(per_task)[1], 2),
        "unit": "us of CPU",
        "spread": [round(min(per_task), 2), round(max(per_task), 2)],
        "n": 3,
        "seconds": {str(size): round(sorted(times)[1], 3) for size, times in cost.items()},
        "peak_mb_at_largest": round(peak / 1e6, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
