"""Checkpoints: stall, save and restore of a state, and whether memory grows over cycles.

The floors are the same bytes through ``np.save``, synced to disk as ours are, and through plain TensorStore; the rival
is Orbax, in the environment whose interpreter ``--orbax`` names. All are interleaved, cycle by cycle. What was
restored is checked equal first. Prints one JSON line; ``value`` is the seconds training stands still per save; times
are the least and the median over the cycles; the growth of resident memory is the median of the second half of the
cycles less that of the first.

    python lib/levanter/benchmarks/bench_checkpoint.py [--smoke] [--cycles N] [--orbax PYTHON]

With ``--memory saves`` nothing but ours runs: save and delete, over and over, as a run does; ``--memory cycles``
restores every save as well. ``value`` is then the slope of resident
memory in MB a cycle, by least squares over the cycles after the first fifth, ``spread`` its standard error, and the
series itself is printed; ``--megabytes`` sets the size of the state.
"""

import argparse
import gc
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from levanter.checkpoint import CheckpointerConfig, load_checkpoint
from levanter.tree_paths import tree_digest
from rigging.memory import current_rss_bytes
from rigging.timing import SystemClock

ORBAX = pathlib.Path(__file__).with_name("orbax_rival.py")


def state(megabytes):
    """A GPT-2-like Adam state: a large table and six layers, three times."""
    rows = int(megabytes * 1e6 / 12 / 384 / 1.55)
    key = jax.random.PRNGKey(0)
    table = jax.random.normal(key, (rows, 384))
    layers = jax.random.normal(key, (6, max(1, rows // 11), 384))
    return {name: {"table": table + i, "layers": layers + i} for i, name in enumerate(("params", "mu", "nu"))}


def ours(tree, saver, step):
    start = time.perf_counter()
    path = saver.on_step(tree, step, force=True)
    stall = time.perf_counter() - start
    saver.wait_until_finished()
    saved = time.perf_counter() - start
    start = time.perf_counter()
    restored = jax.block_until_ready(load_checkpoint(tree, path))
    return {"stall": stall, "save": saved, "restore": time.perf_counter() - start}, restored, path


def numpy_floor(tree, folder):
    os.makedirs(folder)
    start = time.perf_counter()
    for index, leaf in enumerate(jax.tree.leaves(tree)):
        with open(f"{folder}/{index}.npy", "wb") as stream:
            np.save(stream, np.asarray(leaf))
            stream.flush()
            os.fsync(stream.fileno())
    saved = time.perf_counter() - start
    start = time.perf_counter()
    for index in range(len(jax.tree.leaves(tree))):
        jnp.asarray(np.load(f"{folder}/{index}.npy")).block_until_ready()
    return {"save": saved, "restore": time.perf_counter() - start}


def tensorstore_floor(tree, folder):
    """OCDBT and zarr3 as they come: chunks of whole arrays, one new context."""
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    base = {"driver": "ocdbt", "base": f"file://{folder}/"}
    start = time.perf_counter()
    writes = []
    for index, leaf in enumerate(jax.tree.leaves(tree)):
        spec = {"driver": "zarr3", "kvstore": {**base, "path": f"{index}/"}}
        store = ts.open(spec, create=True, dtype=ts.float32, shape=leaf.shape, context=context).result()
        writes.append(store.write(np.asarray(leaf)))
    for write in writes:
        write.result()
    saved = time.perf_counter() - start
    start = time.perf_counter()
    reads = []
    for index in range(len(jax.tree.leaves(tree))):
        spec = {"driver": "zarr3", "kvstore": {**base, "path": f"{index}/"}}
        reads.append(ts.open(spec, open=True, context=context).result().read())
    for read in reads:
        jnp.asarray(read.result()).block_until_ready()
    return {"save": saved, "restore": time.perf_counter() - start}


class Orbax:
    """The rival's process, or nothing."""

    def __init__(self, python, folder, megabytes):
        self.process = None
        if python:
            command = [python, str(ORBAX), folder, str(megabytes)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def cycle(self):
        if self.process is None:
            return None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        if self.process is not None:
            self.process.communicate()


def memory(tree, saver, cycles, restore):
    """Resident memory in MB after every cycle, and the line through what comes after the first fifth."""
    series = []
    for cycle in range(cycles):
        path = saver.on_step(tree, cycle + 2, force=True)
        saver.wait_until_finished()
        if restore:
            jax.block_until_ready(load_checkpoint(tree, path))
        shutil.rmtree(path)
        gc.collect()
        series.append(current_rss_bytes() / 1e6)
    first = cycles // 5
    x, y = np.arange(first, cycles), np.array(series[first:])
    slope, start = np.polyfit(x, y, 1)
    residuals = y - (slope * x + start)
    error = np.sqrt(residuals @ residuals / (len(x) - 2) / np.sum((x - x.mean()) ** 2))
    return {
        "name": "checkpoint_memory_slope",
        "value": slope,
        "unit": "MB of resident memory a cycle",
        "spread": error,
        "n": cycles,
        "state_mb": sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e6,
        "series_mb": [round(value, 1) for value in series],
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
        "rival": "a flat line",
    }


def summary(rows):
    names = [name for name in rows[0] if name not in ("rss", "version")]
    figures = {f"{name}_s": min(row[name] for row in rows) for name in names}
    figures |= {f"{name}_median_s": statistics.median(row[name] for row in rows) for name in names}
    if "rss" in rows[0]:
        held = [row["rss"] for row in rows]
        half = len(held) // 2
        growth = statistics.median(held[half:]) - statistics.median(held[:half])
        figures |= {"rss_growth_bytes": growth, "rss_bytes": [min(held), max(held)]}
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--orbax", help="interpreter of an environment with orbax-checkpoint")
    parser.add_argument("--memory", choices=["saves", "cycles"], help="only the slope of resident memory")
    parser.add_argument("--megabytes", type=float, default=361)
    args = parser.parse_args()
    cycles, megabytes = (6 if args.memory else 2, 20) if args.smoke else (args.cycles, args.megabytes)
    tree = jax.block_until_ready(state(megabytes))
    root = tempfile.mkdtemp()
    config = CheckpointerConfig(
        base_path=f"{root}/run", keep=None, save_interval=None, append_run_id_to_base_path=False
    )
    saver = config.create("run", clock=SystemClock())
    saver.reserve(tree)
    if args.memory:
        json.dump(memory(tree, saver, cycles, args.memory == "cycles"), sys.stdout, sort_keys=True)
        print()
        shutil.rmtree(root)
        return
    rival = Orbax(args.orbax, root, megabytes)
    rows = {"ours": [], "np.save": [], "tensorstore": [], "orbax": []}
    try:
        _, restored, path = ours(tree, saver, 1)
        if tree_digest(restored) != tree_digest(tree):
            raise SystemExit("what was restored differs from what was saved")
        files = sum(len(names) for _, _, names in os.walk(path))
        del restored
        numpy_floor(tree, f"{root}/npy")
        tensorstore_floor(tree, f"{root}/ts")
        for cycle in range(cycles):
            shutil.rmtree(f"{root}/npy")
            shutil.rmtree(f"{root}/ts")
            row, restored, path = ours(tree, saver, cycle + 2)
            del restored
            shutil.rmtree(path)
            rows["np.save"].append(numpy_floor(tree, f"{root}/npy"))
            rows["tensorstore"].append(tensorstore_floor(tree, f"{root}/ts"))
            rows["ours"].append({**row, "rss": current_rss_bytes()})
            rows["orbax"].append(rival.cycle())
    finally:
        rival.close()
        shutil.rmtree(root)
    mine = summary(rows["ours"])
    result = {
        "name": "checkpoint_stall",
        "value": mine["stall_s"],
        "unit": "s",
        "spread": max(row["stall"] for row in rows["ours"]) - mine["stall_s"],
        "n": cycles,
        "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(tree)),
        "files": files,
        "ours": mine,
        "rivals": {name: summary(r) for name, r in rows.items() if name != "ours" and r[0] is not None},
        "rival_version": (rows["orbax"][0] or {}).get("version", "not measured"),
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
