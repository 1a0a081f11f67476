"""Checkpoints: stall, save and restore of a state, and whether memory grows over cycles.

The rival is the floor: the same bytes through ``np.save`` and ``np.load``. What was restored is checked equal first.
Prints one JSON line; ``value`` is the seconds training stands still per save.

    python lib/levanter/benchmarks/bench_checkpoint.py [--smoke] [--cycles N]
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from levanter.checkpoint import CheckpointerConfig, load_checkpoint
from levanter.tree_paths import tree_digest
from rigging.memory import current_rss_bytes
from rigging.timing import SystemClock


def state(megabytes):
    """A GPT-2-like Adam state: a large table and twelve layers, three times."""
    rows = int(megabytes * 1e6 / 12 / 384 / 1.55)
    key = jax.random.PRNGKey(0)
    table = jax.random.normal(key, (rows, 384))
    layers = jax.random.normal(key, (6, max(1, rows // 11), 384))
    return {name: {"table": table + i, "layers": layers + i} for i, name in enumerate(("params", "mu", "nu"))}


def cycle(tree, folder):
    config = CheckpointerConfig(base_path=folder, keep=None, save_interval=None, append_run_id_to_base_path=False)
    saver = config.create("run", clock=SystemClock())
    start = time.perf_counter()
    path = saver.on_step(tree, 1, force=True)
    stall = time.perf_counter() - start
    saver.wait_until_finished()
    saved = time.perf_counter() - start
    start = time.perf_counter()
    restored = jax.block_until_ready(load_checkpoint(tree, path))
    return stall, saved, time.perf_counter() - start, restored, path


def floor(tree, folder):
    os.makedirs(folder, exist_ok=True)
    start = time.perf_counter()
    for index, leaf in enumerate(jax.tree.leaves(tree)):
        np.save(f"{folder}/{index}.npy", np.asarray(leaf))
    saved = time.perf_counter() - start
    start = time.perf_counter()
    for index in range(len(jax.tree.leaves(tree))):
        jnp.asarray(np.load(f"{folder}/{index}.npy")).block_until_ready()
    return saved, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--cycles", type=int, default=20)
    args = parser.parse_args()
    cycles = 2 if args.smoke else args.cycles
    tree = jax.block_until_ready(state(20 if args.smoke else 361))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    root = tempfile.mkdtemp()
    rows, rss = [], []
    try:
        *_, restored, path = cycle(tree, f"{root}/first")
        if tree_digest(restored) != tree_digest(tree):
            raise SystemExit("what was restored differs from what was saved")
        files = sum(len(names) for _, _, names in os.walk(path))
        del restored
        for _ in range(cycles):
            stall, saved, restore, _, _ = cycle(tree, f"{root}/run")
            rows.append((stall, saved, restore, *floor(tree, f"{root}/npy")))
            rss.append(current_rss_bytes())
            shutil.rmtree(f"{root}/run")
    finally:
        shutil.rmtree(root)
    best = np.min(rows, axis=0).tolist()
    result = {
        "name": "checkpoint_stall",
        "value": best[0],
        "unit": "s",
        "spread": float(np.max(rows, axis=0)[0] - best[0]),
        "n": cycles,
        "bytes": size,
        "save_s": best[1],
        "restore_s": best[2],
        "files": files,
        "rss_growth_bytes": rss[-1] - rss[0],
        "rival": {"name": "np.save, np.load", "save_s": best[3], "restore_s": best[4]},
        "rival_version": np.__version__,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
