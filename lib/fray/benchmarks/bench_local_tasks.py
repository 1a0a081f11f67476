"""Tasks and actor calls on this machine: fray beside multiprocessing.Pool, concurrent.futures and Ray, in one run.

Work: a no-op that returns its argument. Every system first proves that it returns the same list; then rounds alternate.
Where Ray is installed (the extra ``ray``), it takes part twice: alone, and under fray's Ray backend.

usage: python lib/fray/benchmarks/bench_local_tasks.py [--smoke] [--workers N]
Prints one JSON line. Rates are tasks per second (median of rounds); ``cold`` is the time from nothing to the first
result.
"""

import argparse
import concurrent.futures
import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import multiprocessing.pool
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

from fray import Client, Entrypoint, JobRequest, LocalClient, connect_backend
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


def run_fray(client: Client, round_name: str, count: int) -> list[int]:
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


class RayRival:
    """Ray itself, with as many cores as the others have workers; its own words, not fray's."""

    def __init__(self, workers: int) -> None:
        ray = self.ray = importlib.import_module("ray")
        self.workers = workers
        self.task = ray.remote(num_cpus=1)(echo)

    def start(self) -> None:
        self.ray.init(
            "local",
            num_cpus=self.workers,
            object_store_memory=80 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="CRITICAL",
        )

    def run(self, count: int) -> list[int]:
        return self.ray.get([self.task.remote(n) for n in range(count)])

    def cold(self) -> None:
        """From nothing to the first result, as the others are measured."""
        self.start()
        assert self.run(1) == [0]

    def counter(self) -> Callable[[], int]:
        handle = self.ray.remote(num_cpus=0)(Counter).remote()
        return lambda: self.ray.get(handle.add.remote(1))


def call_us(call: Callable[[], object], count: int) -> float:
    return seconds(lambda: [call() for _ in range(count)]) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few seconds")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray out")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rounds, count = (3, 200) if options.smoke else (7, 1000)
    spawn = multiprocessing.get_context("spawn")
    colds: dict[str, list[float]] = {"fray": [], "multiprocessing_pool": [], "process_pool_executor": []}
    for _ in range(rounds):
        for name, operation in zip(colds, (cold_fray, cold_pool, cold_futures), strict=True):
            colds[name].append(seconds(operation) * 1e3)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(LocalClient(max_workers=options.workers))
        threads = stack.enter_context(LocalClient(mode="thread"))
        pool = stack.enter_context(spawn.Pool(options.workers))
        executor = stack.enter_context(concurrent.futures.ProcessPoolExecutor(options.workers, mp_context=spawn))
        tasks: dict[str, Callable[[str, int], list[int]]] = {
            "fray": lambda label, n: run_fray(client, label, n),
            "multiprocessing_pool": lambda label, n: run_pool(pool, n),
            "process_pool_executor": lambda label, n: run_futures(executor, n),
        }
        remote = client.create_actor(Counter, name="remote")
        local = threads.create_actor(Counter, name="local")
        calls: dict[str, Callable[[], int]] = {
            "fray_across_processes": lambda: remote.add(1),
            "fray_in_process": lambda: local.add(1),
        }
        if not options.no_ray and importlib.util.find_spec("ray") is not None:
            rival = RayRival(options.workers)
            colds["ray"] = [seconds(rival.cold) * 1e3]  # once: it takes seconds
            stack.callback(rival.ray.shutdown)
            on_ray = connect_backend("ray")
            stack.callback(on_ray.shutdown)
            tasks["ray"] = lambda label, n: rival.run(n)
            tasks["fray_on_ray"] = lambda label, n: run_fray(on_ray, label, n)
            handle = on_ray.create_actor(Counter, name="on-ray")
            calls["ray"] = rival.counter()
            calls["fray_on_ray"] = lambda: handle.add(1)
        result = measure(tasks, calls, rounds, count)
    for name, times in colds.items():
        result[f"{name}_cold_ms"] = round(statistics.median(times), 1)
    print(json.dumps(result, sort_keys=True))


def measure(
    tasks: dict[str, Callable[[str, int], list[int]]], calls: dict[str, Callable[[], int]], rounds: int, count: int
) -> dict[str, object]:
    """Prove equal outputs (which also warms every worker), then time rounds in turn."""
    outputs = {name: run("warm", 50) for name, run in tasks.items()}
    assert all(output == list(range(50)) for output in outputs.values()), outputs
    assert all(call() == 1 for call in calls.values())
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, run in tasks.items():
            rates[name].append(count / seconds(lambda run=run, number=number: run(f"r{number}", count)))
        for name, call in calls.items():
            times[name].append(call_us(call, count))
    quartiles = statistics.quantiles(rates["fray"], n=4)
    report = environment_report()
    versions = [f"multiprocessing and concurrent.futures of Python {platform.python_version()}, spawn"]
    if "ray" in tasks:
        versions.append(f"ray {version('ray')}")
    result: dict[str, object] = {
        "name": "local_tasks_warm",
        "value": round(statistics.median(rates["fray"])),
        "unit": "tasks/s",
        "spread": round(quartiles[2] - quartiles[0]),
        "n": rounds * count,
        "machine": f"{report['cpu']} x{report['cpu_count']}",
        "lock_hash": report["lock_digest"],
        "rival_version": "; ".join(versions),
    }
    result |= {f"{name}_tasks_per_s": round(statistics.median(values)) for name, values in rates.items()}
    result |= {f"{name}_actor_call_us": round(statistics.median(values), 1) for name, values in times.items()}
    return result


if __name__ == "__main__":
    main()
