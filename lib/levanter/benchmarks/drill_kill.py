"""The drill: ``kill -9`` at random moments, resume, and compare with an undisturbed run, byte by byte.

Every trial starts a run in a fresh folder, kills it at a random moment, starts it again until it ends, and compares the
digest of the final parameters and the whole ``metrics.jsonl`` with those of a run that nobody killed. Every fifth kill
falls anywhere in the life of the process (imports, compilation), the others between its first save and its end, where
steps, saves, prunings and evaluations are under way. A run that ends before its kill is killed again. Prints one JSON
line.

    python lib/levanter/benchmarks/drill_kill.py [--trials 50] [--seed 0] [--steps 60]
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


def kill_somewhere(folder, steps, lives, rng, anywhere):
    """Start a run and kill it at a random moment; the phase it was in, or None when it ended first."""
    process = start(folder, steps)
    began = time.monotonic()
    whole_s, saving_s = lives
    try:
        if anywhere:
            process.communicate(timeout=rng.uniform(0, whole_s))
        else:
            while not list(folder.glob("checkpoints/run/step-*")) and process.poll() is None:
                time.sleep(0.005)
            process.communicate(timeout=rng.uniform(0, saving_s))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return phase(folder), time.monotonic() - began
    return None


def trial(root, number, steps, lives, rng):
    for attempt in range(20):
        folder = root / f"trial-{number}-{attempt}"
        folder.mkdir()
        killed = kill_somewhere(folder, steps, lives, rng, anywhere=number % 5 == 0)
        if killed is not None:
            break
    end = finish(start(folder, steps))
    return end, (folder / "logs/run/metrics.jsonl").read_bytes(), killed, folder


def life(folder, steps):
    """Seconds an undisturbed run takes, and of them those after its first save began."""
    began = time.monotonic()
    process = start(folder, steps)
    while not list(folder.glob("checkpoints/run/step-*")) and process.poll() is None:
        time.sleep(0.005)
    saving = time.monotonic()
    end = finish(process)
    return end, (time.monotonic() - began, time.monotonic() - saving)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    trials, rng = 2 if args.smoke else args.trials, random.Random(args.seed)
    root = pathlib.Path(tempfile.mkdtemp())
    try:
        finish(start(root / "warm-up", args.steps))  # fills the compile cache, so that the lifetimes are alike
        digest, lives = life(root / "undisturbed", args.steps)
        metrics = (root / "undisturbed/logs/run/metrics.jsonl").read_bytes()
        identical, killed, where = 0, 0, {}
        for number in range(trials):
            end, rows, kill, folder = trial(root, number, args.steps, lives, rng)
            same = end == digest and rows == metrics
            identical += same
            if kill is not None:
                killed += 1
                where[kill[0]] = where.get(kill[0], 0) + 1
            print(f"trial {number}: killed {kill}, {'same' if same else 'DIFFERS'}", file=sys.stderr, flush=True)
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
        "undisturbed_seconds": lives[0],
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()
    if identical != trials:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
