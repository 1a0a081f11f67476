"""Local tasks and actor calls: fray beside multiprocessing.Pool and concurrent.futures, interleaved in one run.

Work: a no-op that returns its argument. Every system first proves that it returns the same list; then rounds alternate.

usage: python lib/fray/benchmarks/bench_local_tasks.py [--smoke] [--workers N]
Prints one JSON line. Rates are tasks per second (median of rounds); ``cold`` is the time from nothing to the first
result.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import multiprocessing.pool
import platform
import statistics
import time
from collections.abc import Callable

from fray import Entrypoint, JobRequest, LocalClient
from rigging.provenance import environment_report


def echo(n: int) -> int:
    """The task."""
    return n


class Counter:
    """The actor."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        """Add and return the sum."""
        self.value += amount
        return self.value


def run_fray(client: LocalClient, round_name: str, count: int) -> list[int]:
    jobs = [client.submit(JobRequest(f"{round_name}-{n}", Entrypoint.from_callable(echo, (n,)))) for n in range(count)]
    return [job.result() for job in jobs]


def run_pool(pool: multiprocessing.pool.Pool, count: int) -> list[int]:
    return [handle.get() for handle in [pool.apply_async(echo, (n,)) for n in range(count)]]


def run_futures(executor: concurrent.futures.Executor, count: int) -> list[int]:
    return [future.result() for future in [executor.submit(echo, n) for n in range(count)]]


def seconds(operation: Callable[[], object]) -> float:
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def cold_fray() -> None:
    with LocalClient() as client:
        assert run_fray(client, "cold", 1) == [0]


def cold_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert run_pool(pool, 1) == [0]


def cold_futures() -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert run_futures(executor, 1) == [0]


def call_us(call: Callable[[], object], count: int) -> float:
    return seconds(lambda: [call() for _ in range(count)]) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few seconds")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rounds, count = (3, 200) if options.smoke else (9, 1000)
    spawn = multiprocessing.get_context("spawn")
    rates: dict[str, list[float]] = {"fray": [], "multiprocessing_pool": [], "process_pool_executor": []}
    colds: dict[str, list[float]] = {"fray": [], "multiprocessing_pool": [], "process_pool_executor": []}
    across: list[float] = []
    inside: list[float] = []
    for _ in range(rounds):
        for name, operation in zip(colds, (cold_fray, cold_pool, cold_futures), strict=True):
            colds[name].append(seconds(operation) * 1e3)
    with (
        LocalClient(max_workers=options.workers) as client,
        LocalClient(mode="thread") as threads,
        spawn.Pool(options.workers) as pool,
        concurrent.futures.ProcessPoolExecutor(options.workers, mp_context=spawn) as executor,
    ):
        expected = list(range(50))
        # Also warms every worker; the outputs must be equal before anything is timed.
        assert run_fray(client, "w", 50) == run_pool(pool, 50) == run_futures(executor, 50) == expected
        remote = client.create_actor(Counter, name="remote")
        local = threads.create_actor(Counter, name="local")
        assert remote.add(1) == local.add(1) == 1
        for number in range(rounds):
            rates["fray"].append(count / seconds(lambda number=number: run_fray(client, f"r{number}", count)))
            rates["multiprocessing_pool"].append(count / seconds(lambda: run_pool(pool, count)))
            rates["process_pool_executor"].append(count / seconds(lambda: run_futures(executor, count)))
            across.append(call_us(lambda: remote.add(1), count))
            inside.append(call_us(lambda: local.add(1), count))
    quartiles = statistics.quantiles(rates["fray"], n=4)
    report = environment_report()
    result: dict[str, object] = {
        "name": "local_tasks_warm",
        "value": round(statistics.median(rates["fray"])),
        "unit": "tasks/s",
        "spread": round(quartiles[2] - quartiles[0]),
        "n": rounds * count,
        "machine": f"{report['cpu']} x{report['cpu_count']}",
        "lock_hash": report["lock_digest"],
        "rival_version": f"multiprocessing and concurrent.futures of Python {platform.python_version()}, spawn",
        "actor_call_across_processes_us": round(statistics.median(across), 1),
        "actor_call_in_process_us": round(statistics.median(inside), 1),
    }
    for name in rates:
        result[f"{name}_tasks_per_s"] = round(statistics.median(rates[name]))
        result[f"{name}_cold_ms"] = round(statistics.median(colds[name]), 1)
    print(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
