"""zephyr beside Polars, DuckDB, datatrove and Ray Data on the same files, in one run, outputs checked equal first.

Workloads over jsonl.gz: `filter` (two column conditions -> Parquet, zstd), `callable` (the same through a Python
function that sees the record; Polars gets `map_elements` over the two columns), `dedupe` (one row of each key, all
columns -> Parquet; only zephyr promises which, so number of rows and keys are compared), `words` (split the text at
spaces and count each word -> Parquet). Engines run in processes of their own, in turn, `--repeats` times, the slow ones
(datatrove, Ray Data) `--slow-repeats` times; start-up (imports, pools, clusters) is not timed. Rivals live in a
throw-away environment.

    python benchmarks/bench_pipelines.py [--smoke] [--rows N] [--repeats N] [--rivals-python PATH] [--workloads A,B]

Prints one JSON line; `value` is zephyr's speed as a share of Polars' in the `filter` workload (1.0 = equally fast).
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from isal import igzip

RIVALS = ["polars", "duckdb", "datatrove[io,processing]", "ray[data]"]
WORKLOADS = {
    "filter": ["zephyr", "polars", "duckdb", "datatrove", "ray"],
    "callable": ["zephyr", "polars", "datatrove", "ray"],
    "dedupe": ["zephyr", "polars", "duckdb"],
    "words": ["zephyr", "polars", "duckdb"],
}
SLOW = ("datatrove", "ray")

ZEPHYR = """
import sys, time
import pyarrow as pa, pyarrow.compute as pc
from zephyr import Dataset, ZephyrContext, col
def words(batch):
    return pa.RecordBatch.from_arrays([pc.split_pattern(batch.column("text"), " ").flatten()], ["word"])
def main(workload, src, out):
    base = Dataset.from_files(src + "/*.jsonl.gz").load_jsonl()
    target = out + "/{shard:03d}.parquet"
    if workload == "filter":
        ds = base.filter((col("score") > 0.5) & (col("text").length() > 1000)).write_parquet(target)
    elif workload == "callable":
        ds = base.filter(lambda r: r["score"] > 0.5 and len(r["text"]) > 1000).write_parquet(target)
    elif workload == "dedupe":
        ds = base.deduplicate("key").write_parquet(target)
    else:
        counts = base.select("text").map_batches(words).aggregate("word", count=(None, "count"))
        ds = counts.write_parquet(target)
    with ZephyrContext(max_workers=2) as ctx:
        ctx.execute(Dataset.from_list([0, 1]).map(lambda x: time.sleep(0.2)))
        began = time.perf_counter()
        ctx.execute(ds)
        print(time.perf_counter() - began)
if __name__ == "__main__":
    main(*sys.argv[1:])
"""

POLARS = """
import os, sys, time
os.environ["POLARS_MAX_THREADS"] = "2"
import polars as pl
workload, src, out = sys.argv[1:]
def run():
    lf = pl.scan_ndjson(src + "/*.jsonl.gz")
    if workload == "filter":
        lf = lf.filter((pl.col("score") > 0.5) & (pl.col("text").str.len_chars() > 1000))
    elif workload == "callable":
        keep = lambda r: r["score"] > 0.5 and len(r["text"]) > 1000
        lf = lf.filter(pl.struct("score", "text").map_elements(keep, return_dtype=pl.Boolean))
    elif workload == "dedupe":
        lf = lf.unique("key", keep="any")
    else:
        words = lf.select(pl.col("text").str.split(" ").alias("word")).explode("word")
        lf = words.group_by("word").agg(pl.len().alias("count"))
    lf.sink_parquet(out + "/all.parquet", compression="zstd", compression_level=3)
began = time.perf_counter()
run()
print(time.perf_counter() - began)
"""

DUCKDB = """
import sys, time
import duckdb
workload, src, out = sys.argv[1:]
db = duckdb.connect()
db.execute("SET threads = 2")
table = f"read_json('{src}/*.jsonl.gz', format='newline_delimited')"
where = "WHERE score > 0.5 AND length(text) > 1000"
query = f"SELECT * FROM {table} {where}"
if workload == "dedupe":
    query = f"SELECT DISTINCT ON (key) * FROM {table}"
if workload == "words":
    words = f"SELECT unnest(string_split(text, ' ')) AS word FROM {table}"
    query = f"SELECT word, count(*) AS count FROM ({words}) GROUP BY word"
began = time.perf_counter()
db.execute(f"COPY ({query}) TO '{out}/all.parquet' (COMPRESSION zstd, COMPRESSION_LEVEL 3)")
print(time.perf_counter() - began)
"""

# Two processes of four tasks each: datatrove's own process pool would import everything again within the timed part.
DATATROVE = """
import subprocess, sys, time
workload, src, out, first = [*sys.argv[1:], "0"][:4]
call = [sys.executable, __file__, workload, src, out, "4"]
other = subprocess.Popen(call, stdout=subprocess.PIPE, text=True) if first == "0" else None
from loguru import logger
logger.remove()
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import ParquetWriter
def keep(doc):
    return doc.metadata["score"] > 0.5 and len(doc.text) > 1000
steps = [JsonlReader(src, glob_pattern="*.jsonl.gz"), LambdaFilter(keep), ParquetWriter(out, compression="zstd")]
executor = LocalPipelineExecutor(
    steps, tasks=8, workers=1, local_tasks=4, local_rank_offset=int(first), logging_dir=out + "/logs" + first
)
began = time.perf_counter()
executor.run()
spent = time.perf_counter() - began
if other is not None:
    spent = max(spent, float(other.communicate()[0].split()[-1]))
print(spent)
"""

RAY = """
import sys, time
import pyarrow as pa, pyarrow.compute as pc
import ray, ray.data
workload, src, out = sys.argv[1:]
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
def columns(table):
    long = pc.greater(pc.utf8_length(table["text"]), 1000)
    return table.filter(pc.and_(pc.greater(table["score"], 0.5), long))
ray.get(ray.remote(lambda: 1).remote())
began = time.perf_counter()
ds = ray.data.read_json(src, file_extensions=["gz"])
if workload == "filter":
    ds = ds.map_batches(columns, batch_format="pyarrow")
else:
    ds = ds.filter(lambda row: row["score"] > 0.5 and len(row["text"]) > 1000)
ds.write_parquet(out, compression="zstd", compression_level=3)
print(time.perf_counter() - began)
"""

SCRIPTS = {"zephyr": ZEPHYR, "polars": POLARS, "duckdb": DUCKDB, "datatrove": DATATROVE, "ray": RAY}

CHECK = """
import glob, json, sys
import pyarrow.parquet as pq
workload, engine, out = sys.argv[1:]
rows = ids = keys = 0
for path in glob.glob(out + "/**/*.parquet", recursive=True):
    table = pq.read_table(path)
    rows += table.num_rows
    if workload == "words":
        keys += sum(table.column("count").to_pylist())
        ids += sum(len(w) * n for w, n in zip(table.column("word").to_pylist(), table.column("count").to_pylist()))
    elif workload == "dedupe":
        keys += sum(int(k[1:]) for k in table.column("key").to_pylist())
    else:
        ids += sum(int(i) for i in table.column("id").to_pylist())
print(json.dumps([rows, ids, keys]))
"""


def generate(folder: Path, rows: int) -> int:
    """Write 8 seeded jsonl.gz files; returns the raw bytes."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(40_000)]
    folder.mkdir(parents=True)
    raw = 0
    for part in range(8):
        with igzip.open(folder / f"{part}.jsonl.gz", "wb", compresslevel=1) as stream:
            for at in range(part * rows // 8, (part + 1) * rows // 8):
                text = " ".join(rng.choices(words, k=rng.randint(50, 500)))
                row = {"id": at, "key": f"k{rng.randrange(rows * 4 // 5):09d}", "score": rng.random(), "text": text}
                raw += stream.write(json.dumps(row).encode() + b"\n")
    return raw


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and its descendants (shared pages counted in each)."""
    total, queue = 0, [pid]
    while queue:
        one = queue.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in os.listdir(f"/proc/{one}/task"):
                queue.extend(map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split()))
        except (OSError, IndexError):
            continue
    return total


def timed(python: str, script: str, workload: str, src: Path, out: Path) -> tuple[float, int]:
    """Seconds that a script reports, and the peak memory of its process tree."""
    out.mkdir(parents=True)
    file = out.parent / f"{out.name}.py"
    file.write_text(script)
    environ = {**os.environ, "MARIN_PROGRESS": "0"}
    call = [python, str(file), workload, str(src), str(out)]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            peak[0] = max(peak[0], tree_rss(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    stdout, stderr = process.communicate()
    stop.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{file} failed:\n{stderr[-3000:]}")
    return float(stdout.split()[-1]), peak[0]


def rivals_environment(folder: Path) -> str:
    """Make the environment of the rivals; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *RIVALS, "pyarrow", "orjson"], check=True)
    return python


def versions(python: str) -> dict[str, str]:
    """Versions of the rivals and of Arrow."""
    names = "['polars', 'duckdb', 'datatrove', 'ray']"
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    out = json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)
    return {**out, "pyarrow": importlib.metadata.version("pyarrow")}


def run(options: argparse.Namespace, rivals: str, folder: Path) -> dict[str, object]:
    """Run everything and return the report."""
    rows, repeats = options.rows, options.repeats
    raw = generate(folder / "in", rows)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for workload in options.workloads.split(","):
        engines = WORKLOADS[workload]
        seconds: dict[str, list[float]] = {engine: [] for engine in engines}
        peaks: dict[str, int] = dict.fromkeys(engines, 0)
        answers: dict[str, str] = {}
        for repeat in range(repeats):
            for engine in engines:
                if engine in SLOW and repeat >= options.slow_repeats:
                    continue
                python = sys.executable if engine == "zephyr" else rivals
                out = folder / f"{workload}-{engine}-{repeat}"
                spent, peak = timed(python, SCRIPTS[engine], workload, folder / "in", out)
                seconds[engine].append(spent)
                peaks[engine] = max(peaks[engine], peak)
                if repeat == 0:
                    check = [sys.executable, "-c", CHECK, workload, engine, str(out)]
                    answers[engine] = subprocess.run(check, capture_output=True, text=True, check=True).stdout
        if len(set(answers.values())) != 1:
            raise SystemExit(f"outputs differ in {workload}: {answers}")
        results[workload] = {
            engine: {
                "seconds": round(statistics.median(times), 3),
                "min": round(min(times), 3),
                "max": round(max(times), 3),
                "mb_per_s": round(raw / 1e6 / statistics.median(times), 1),
                "peak_rss_mb": round(peaks[engine] / 1e6),
            }
            for engine, times in seconds.items()
        }
    first = results[options.workloads.split(",")[0]]
    ours, theirs = first["zephyr"], first["polars"]
    lock = next((p / "uv.lock" for p in Path(__file__).resolve().parents if (p / "uv.lock").exists()), None)
    return {
        "name": f"zephyr_{options.workloads.split(',')[0]}_speed_over_polars",
        "value": round(theirs["seconds"] / ours["seconds"], 3),
        "unit": "ratio",
        "spread": [round(theirs["min"] / ours["max"], 3), round(theirs["max"] / ours["min"], 3)],
        "n": repeats,
        "rows": rows,
        "raw_mb": round(raw / 1e6, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "lock_hash": hashlib.sha256(lock.read_bytes()).hexdigest()[:16] if lock else "none",
        "rival_version": versions(rivals),
        "results": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny input, one repeat")
    parser.add_argument("--rows", type=int, default=240_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-repeats", type=int, default=1)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="some of them, with commas")
    parser.add_argument("--rivals-python", default=None, help="interpreter that already has the rivals")
    options = parser.parse_args()
    if options.smoke:
        options.rows, options.repeats = 2_000, 1
    with tempfile.TemporaryDirectory(prefix="bench-zephyr-") as folder:
        rivals = options.rivals_python or rivals_environment(Path(folder) / "rivals")
        began = time.perf_counter()
        report = run(options, rivals, Path(folder))
        report["wall_s"] = round(time.perf_counter() - began, 1)
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
