"""Kill -9 or stop a worker, or kill the driver, at a random moment of a pipeline with three shuffles; many times.

After each trial the output must be byte-equal to that of an undisturbed run, with nothing beside it and nothing in the
scratch folder; a killed driver is started again until it is done, and none of its workers may outlive it. Prints one
JSON line; `value` is the number of trials that held, exit code 1 when one did not.

    python benchmarks/kill_trials.py [--trials 50] [--seed 1]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DRIVER = """
import sys
from zephyr import Dataset, Policy, ZephyrContext, col, counters
def tag(row):
    counters.increment("tagged")
    return {**row, "tag": row["t"] + str(row["k"])}
def collect(k, rows):
    return {"k": k, "n": [row["n"] for row in rows]}
def main(source, out, scratch):
    ds = Dataset.from_files(source + "/*.jsonl").load_jsonl().filter(col("n") > 100).map(tag)
    ds = ds.deduplicate("tag", 4).group_by("k", sort_by="n", reducer=collect, num_output_shards=3)
    ds = ds.sort_by("k", num_output_shards=2).write_jsonl(out + "/{shard}.jsonl.gz", skip_existing=True)
    policy = Policy(heartbeat_timeout_s=4.0, suspect_after_s=1.5)
    result = ZephyrContext(max_workers=2, chunk_storage_prefix=scratch, policy=policy).execute(ds)
    print(len(result.results))
if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def generate(folder: Path) -> None:
    """Six files of seeded records."""
    rng = random.Random(7)
    folder.mkdir()
    for part in range(6):
        rows = [{"k": rng.randrange(300), "n": rng.randrange(10**6), "t": rng.choice("abc")} for _ in range(20_000)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def descendants(pid: int) -> list[int]:
    """Processes below one."""
    found: list[int] = []
    queue = [pid]
    while queue:
        one = queue.pop()
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                queue += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
        except OSError:
            continue
        found.append(one)
    return found[1:]


def workers(pid: int) -> list[int]:
    """Worker processes of a driver: those that speak fray's frames."""
    out = []
    for child in descendants(pid):
        try:
            if b"worker_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                out.append(child)
        except OSError:
            continue
    return out


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a folder, lineage notes included."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def trial(call: list[str], kind: str, delay_s: float) -> tuple[bool, list[int]]:
    """Run a driver, harm it after a while, and bring it to its end; returns whether it was hit, and its old workers."""
    driver = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (found := workers(driver.pid)) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay_s)
    found = workers(driver.pid)
    hit = driver.poll() is None and bool(found)
    if hit and kind == "driver":
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        subprocess.run(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)
        return True, found
    if hit:
        try:
            os.kill(random.choice(found), signal.SIGKILL if kind == "worker" else signal.SIGSTOP)
        except ProcessLookupError:
            hit = False
    driver.communicate(timeout=120)
    if driver.returncode:
        raise SystemExit(f"the driver failed with exit code {driver.returncode} after: {kind} at {delay_s:.2f} s")
    return hit, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="three trials")
    options = parser.parse_args()
    random.seed(options.seed)
    os.environ["MARIN_PROGRESS"] = "0"
    held = {"worker": 0, "stopped worker": 0, "driver": 0, "not hit": 0}
    failed: list[str] = []
    num = 3 if options.smoke else options.trials
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="zephyr-kills-") as name:
        folder = Path(name)
        generate(folder / "in")
        (folder / "driver.py").write_text(DRIVER)
        call = [sys.executable, str(folder / "driver.py"), str(folder / "in")]
        once = time.perf_counter()
        subprocess.run([*call, str(folder / "calm"), str(folder / "scratch")], check=True, stdout=subprocess.DEVNULL)
        span = time.perf_counter() - once
        # Notes name their path: the trials write where the calm run wrote.
        expected = contents(folder / "calm")
        for at in range(num):
            subprocess.run(["rm", "-rf", str(folder / "calm")], check=True)
            kind = ("worker", "worker", "driver", "stopped worker")[at % 4]
            delay = random.random() * span * 0.45
            hit, before = trial([*call, str(folder / "calm"), str(folder / "scratch")], kind, delay)
            limit = time.monotonic() + 20
            while any(map(alive, before)) and time.monotonic() < limit:
                time.sleep(0.05)
            right = contents(folder / "calm") == expected and not any((folder / "scratch").iterdir())
            if not right or any(map(alive, before)):
                failed.append(f"{kind} at {delay:.2f} s")
            held[kind if hit else "not hit"] += 1
    report = {
        "name": "zephyr_kill_trials",
        "value": num - len(failed),
        "unit": "trials that held",
        "n": num,
        "hit": held,
        "failed": failed,
        "wall_s": round(time.perf_counter() - began, 1),
        "machine": f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(report, sort_keys=True))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
