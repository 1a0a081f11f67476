"""A sort of more data than a worker may hold, under a memory limit that the system enforces; order and rows checked.

Writes seeded jsonl files, sorts them globally by key into Parquet with workers whose resident memory is watched
(`--ram` each; a worker beyond it is ended) and measures time, the peak of any one worker, and of all processes.

    python benchmarks/bench_sort.py [--smoke] [--rows N] [--ram 1g] [--workers 2] [--folder DIR]

Prints one JSON line; `value` is megabytes of input per second. 4 GB are about `--rows 4000000`.
"""

import argparse
import json
import os
import platform
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from rigging.resources import ResourceConfig
from zephyr import Dataset, ZephyrContext

FILES = 16


def generate(folder: Path, rows: int) -> int:
    """Write seeded records of about a kilobyte; returns the bytes."""
    rng = random.Random(5)
    encoder = msgspec.json.Encoder()
    texts = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=rng.randint(400, 1500))) for _ in range(500)]
    folder.mkdir(parents=True)
    total = 0
    for part in range(FILES):
        with open(folder / f"{part:02d}.jsonl", "wb") as stream:
            for at in range(part * rows // FILES, (part + 1) * rows // FILES, 1000):
                some = range(at, min(at + 1000, (part + 1) * rows // FILES))
                items = [{"id": n, "key": rng.getrandbits(60), "text": rng.choice(texts)} for n in some]
                total += stream.write(encoder.encode_lines(items))
    return total


def processes(pid: int) -> Iterator[tuple[int, int]]:
    """(depth, resident bytes) of a process and its descendants."""
    queue = [(0, pid)]
    while queue:
        depth, one = queue.pop()
        try:
            yield depth, int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in os.listdir(f"/proc/{one}/task"):
                children = Path(f"/proc/{one}/task/{task}/children").read_text().split()
                queue.extend((depth + 1, int(child)) for child in children)
        except (OSError, IndexError):
            continue


def check(paths: list[str], rows: int) -> None:
    """Fail unless the files one after another are sorted and hold every id once."""
    seen, last, ids = 0, -1, 0
    for path in paths:
        file = pq.ParquetFile(path)
        for batch in file.iter_batches(columns=["key", "id"]):
            keys = batch.column("key").to_numpy()
            if len(keys) and (keys[0] < last or (keys[1:] < keys[:-1]).any()):
                raise SystemExit(f"{path} is not sorted")
            last = int(keys[-1]) if len(keys) else last
            ids += int(batch.column("id").to_numpy().sum())
            seen += batch.num_rows
    if (seen, ids) != (rows, rows * (rows - 1) // 2):
        raise SystemExit(f"rows are missing: {seen} of {rows}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny input")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--ram", default="1g", help="of one worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", default=None, help="where to work; needs three times the input")
    options = parser.parse_args()
    rows = 20_000 if options.smoke else options.rows
    folder = Path(tempfile.mkdtemp(prefix="bench-sort-", dir=options.folder))
    try:
        raw = generate(folder / "in", rows)
        peaks = {"worker": 0, "all": 0}
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                found = list(processes(os.getpid()))
                peaks["worker"] = max(peaks["worker"], *(size for depth, size in found if depth), 0)
                peaks["all"] = max(peaks["all"], sum(size for _, size in found))

        watcher = threading.Thread(target=watch)
        watcher.start()
        ds = Dataset.from_files(str(folder / "in" / "*.jsonl")).load_jsonl().sort_by("key")
        began = time.perf_counter()
        resources = ResourceConfig(cpu=1, ram=options.ram)
        with ZephyrContext(options.workers, resources, chunk_storage_prefix=str(folder / "scratch")) as ctx:
            out = ctx.execute(ds.write_parquet(str(folder / "out" / "{shard:03d}.parquet")))
        seconds = time.perf_counter() - began
        over.set()
        watcher.join()
        check(out.results, rows)
        report = {
            "name": "zephyr_sort_speed",
            "value": round(raw / 1e6 / seconds, 1),
            "unit": "MB/s",
            "n": 1,
            "seconds": round(seconds, 1),
            "rows": rows,
            "raw_mb": round(raw / 1e6),
            "limit": options.ram,
            "peak_mb_of_a_worker": round(peaks["worker"] / 1e6),
            "peak_mb_of_all": round(peaks["all"] / 1e6),
            "stages": [[stage["name"], stage["seconds"], stage["dropped"]] for stage in out.stages],
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
