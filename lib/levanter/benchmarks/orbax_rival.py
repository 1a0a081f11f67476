"""The rival of ``bench_checkpoint.py``: Orbax in an environment of its own, one save and restore per line on stdin.

    python -m venv rival && rival/bin/pip install orbax-checkpoint jax

Prints one JSON object a line: seconds training would stand still, seconds to the commit, seconds to restore, resident
bytes. The state is that of :func:`bench_checkpoint.state`, which is made here again because levanter is not installed.
"""

import json
import os
import shutil
import sys
import time

import jax
import orbax.checkpoint as ocp


def state(megabytes):
    rows = int(megabytes * 1e6 / 12 / 384 / 1.55)
    key = jax.random.PRNGKey(0)
    table = jax.random.normal(key, (rows, 384))
    layers = jax.random.normal(key, (6, max(1, rows // 11), 384))
    return {name: {"table": table + i, "layers": layers + i} for i, name in enumerate(("params", "mu", "nu"))}


def resident():
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(folder, megabytes):
    tree = jax.block_until_ready(state(megabytes))
    saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
    for index, _ in enumerate(sys.stdin):
        path = os.path.join(folder, f"orbax-{index}")
        start = time.perf_counter()
        saver.save(path, args=ocp.args.StandardSave(tree))
        stall = time.perf_counter() - start
        saver.wait_until_finished()
        saved = time.perf_counter() - start
        start = time.perf_counter()
        restored = jax.block_until_ready(saver.restore(path, args=ocp.args.StandardRestore(shapes)))
        row = {"stall": stall, "save": saved, "restore": time.perf_counter() - start}
        del restored
        shutil.rmtree(path)
        print(json.dumps({**row, "rss": resident(), "version": ocp.__version__}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
