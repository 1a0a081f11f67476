"""The drill: ``kill -9`` at random moments, resume, and compare with an undisturbed run, byte by byte.

Every trial starts a run in a fresh folder, kills it at a random moment (any moment of its life: imports, compilation,
steps, saves, the last save), starts it again until it ends, and compares the digest of the final parameters and the
whole ``metrics.jsonl`` with those of a run that nobody killed. Prints one JSON line.

    python lib/levanter/benchmarks/drill_kill.py [--trials 50] [--kills 1] [--seed 0] [--steps 60]
"""

import argparse
import json
import os
import pathlib
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time

WORKER = pathlib.Path(__file__).parent.parent / "tests" / "crash_worker.py"


def start(folder, steps):
    env = {**os.environ, "MARIN_PROGRESS": "0", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(WORKER), str(folder), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(process):
    out, err = process.communicate(timeout=600)
    if process.returncode != 0:
        raise SystemExit(f"a resumed run failed with code {process.returncode}:\n{err[-4000:]}")
    return out.strip().splitlines()[-1]


def phase(folder):
    """Where in its life a killed run was."""
    saved = [p.name for p in folder.glob("checkpoints/run/step-*") if (p / "metadata.json").exists()]
    torn = [p.name for p in folder.glob("checkpoints/run/step-*") if not (p / "metadata.json").exists()]
    if torn:
        return "during a save"
    return "after a save" if saved else "before the first save"


def trial(root, number, kills, steps, lifetime_s, rng):
    folder = root / f"trial-{number}"
    folder.mkdir()
    phases = []
    for _ in range(kills):
        process = start(folder, steps)
        try:
            process.communicate(timeout=rng.uniform(0, lifetime_s))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            phases.append(phase(folder))
    return finish(start(folder, steps)), (folder / "logs/run/metrics.jsonl").read_bytes(), phases, folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--kills", type=int, default=1, help="kills in one trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    trials, rng = 2 if args.smoke else args.trials, random.Random(args.seed)
    root = pathlib.Path(tempfile.mkdtemp())
    try:
        finish(start(root / "warm-up", args.steps))  # fills the compile cache, so that the lifetimes are alike
        began = time.monotonic()
        digest = finish(start(root / "undisturbed", args.steps))
        lifetime_s = time.monotonic() - began
        metrics = (root / "undisturbed/logs/run/metrics.jsonl").read_bytes()
        identical, killed, where = 0, 0, {}
        for number in range(trials):
            end, rows, phases, folder = trial(root, number, args.kills, args.steps, lifetime_s, rng)
            killed += len(phases)
            for name in phases:
                where[name] = where.get(name, 0) + 1
            identical += end == digest and rows == metrics
            print(
                f"trial {number}: {phases} {'same' if end == digest and rows == metrics else 'DIFFERS'}",
                file=sys.stderr,
            )
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root)
    result = {
        "name": "bit_identical_resumes",
        "value": identical,
        "unit": f"of {trials} runs",
        "n": trials,
        "spread": 0,
        "killed": killed,
        "where": where,
        "undisturbed_seconds": lifetime_s,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()
    if identical != trials:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
