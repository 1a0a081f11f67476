"""From the command to the first step: what a small run from local files spends its first seconds on.

Every run is a fresh process with fresh folders: tokenizer, `train.jsonl.gz`, `val.jsonl` and a YAML file in, the loss
of the first step out. Cases: ``cold`` (nothing cached, modules with bytecode as pip leaves them), ``source`` (without
bytecode, as under ``PYTHONDONTWRITEBYTECODE`` or after a plain ``uv sync``), ``cached`` (``jax_compilation_cache_dir``
filled by a run before). Cases are interleaved, and so is ``import jax``, the part that no trainer can save. Prints one
JSON line; ``value`` is the median wall-clock time of ``cold``, the breakdown is the run with that time.

    python lib/levanter/benchmarks/bench_startup.py [--smoke] [--runs N]

The breakdown: ``imports``, ``config``, ``trainer`` (mesh, trackers), ``data`` (tokenise, cache, first example),
``state`` (compile and run the initialisation; the step compiles meanwhile), ``rest`` (validation data, summaries),
``batch`` (wait for the first), ``compile`` (what was left of compiling, and the step itself). CPU seconds count all
threads.
"""

import argparse
import gzip
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

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = pathlib.Path(__file__).parents[1] / "examples/shakespeare_char/tinyshakespeare.txt.gz"
CONFIG = """
data:
  tokenizer: tokenizer/
  cache_dir: cache
  components:
    text: {source: {type: url, train_urls: [train.jsonl.gz], validation_urls: [val.jsonl]}}
model:
  {type: llama, max_seq_len: 64, hidden_dim: 128, intermediate_dim: 352, num_layers: 4, num_heads: 4, num_kv_heads: 4}
trainer: {train_batch_size: 12, num_train_steps: 2, checkpointer: {base_path: checkpoints}}
optimizer: {type: adam, learning_rate: 1e-3}
"""

CHILD = """
import logging, os, sys, time
began = float(os.environ["BENCH_BEGAN"])
marks = {}
def mark(name):
    marks[name] = time.time() - began
def timed(owner, name):
    inner = getattr(owner, name)
    def run(*args, **kwargs):
        start = time.time()
        result = inner(*args, **kwargs)
        marks[name] = time.time() - start
        return result
    setattr(owner, name, run)
class First(logging.Handler):
    def emit(self, record):
        if record.msg.startswith("first step") and "first_step" not in marks:
            mark("first_step")
            marks["cpu"] = time.process_time()
            marks["batch"], marks["compile"] = record.args[:2]
import jax
mark("jax")
from levanter import config
from levanter.data.text.config import LmDataConfig
from levanter.main import train_lm
from levanter.trainer import Trainer
mark("imports")
parsed = config.parse_command_line(train_lm.TrainLmConfig, sys.argv[1:])
mark("config")
timed(LmDataConfig, "train_set")
timed(Trainer, "data_loader")
timed(Trainer, "initial_state")
timed(Trainer, "__init__")
logger = logging.getLogger("levanter.trainer")
logger.setLevel(logging.INFO)
logger.addHandler(First())
result = train_lm.train(parsed, progress=False)
import json
print(json.dumps({**marks, "loss": result.final_loss}))
"""


def prepare(folder):
    """Files of a run, the same every time."""
    folder.mkdir()
    documents = [part for part in gzip.decompress(TEXT.read_bytes()).decode().split("\n\n") if part.strip()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
    lines = [json.dumps({"text": document}) + "\n" for document in documents]
    cut = len(lines) * 9 // 10
    (folder / "train.jsonl.gz").write_bytes(gzip.compress("".join(lines[:cut]).encode()))
    (folder / "val.jsonl").write_text("".join(lines[cut:]))
    (folder / "config.yaml").write_text(CONFIG)


def run(folder, case, bytecode):
    """One fresh process; its marks in seconds."""
    for name in ("cache", "checkpoints", "logs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "XLA_FLAGS")}
    env |= {"BENCH_BEGAN": str(time.time()), "MARIN_PROGRESS": "0", "JAX_PLATFORMS": "cpu"}
    if case == "source":
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(folder / "no-bytecode")}
    else:
        env["PYTHONPYCACHEPREFIX"] = bytecode
    words = ["--config_path", "config.yaml"]
    if case == "cached":
        words += ["--trainer.jax_compilation_cache_dir", str(folder / "compiled")]
    command = [sys.executable, "-c", CHILD, *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    marks = json.loads(done.stdout.splitlines()[-1])
    parts = {
        "imports": marks["imports"],
        "config": marks["config"] - marks["imports"],
        "trainer": marks["__init__"],
        "data": marks["train_set"] + marks["data_loader"],
        "state": marks["initial_state"],
        "batch": marks["batch"],
        "compile": marks["compile"],
    }
    rest = marks["first_step"] - sum(parts.values())
    return {"wall_s": marks["first_step"], "cpu_s": marks["cpu"], "jax_s": marks["jax"], "loss": marks["loss"],
            "parts_s": {**parts, "rest": rest}}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    runs, cases = (1, ["cold"]) if args.smoke else (args.runs, ["cold", "source", "cached"])
    root = pathlib.Path(tempfile.mkdtemp())
    try:
        prepare(root / "run")
        bytecode = str(root / "bytecode")
        for case in cases[::2]:  # fills the bytecode and the compile cache
            run(root / "run", case, bytecode)
        rows = {case: [] for case in cases}
        for _ in range(runs):
            for case in cases:
                rows[case].append(run(root / "run", case, bytecode))
    finally:
        shutil.rmtree(root)
    losses = {row["loss"] for case in cases for row in rows[case]}
    if len(losses) != 1:
        raise SystemExit(f"the runs differ: losses={sorted(losses)}")
    report = {}
    for case in cases:
        ordered = sorted(rows[case], key=lambda row: row["wall_s"])
        middle = ordered[len(ordered) // 2]
        report[case] = {
            **middle,
            "cpu_s": statistics.median(row["cpu_s"] for row in ordered),
            "jax_s": statistics.median(row["jax_s"] for row in ordered),
            "range_s": [ordered[0]["wall_s"], ordered[-1]["wall_s"]],
        }
    cold = report["cold"]
    result = {
        "name": "yaml_to_first_step",
        "value": cold["wall_s"],
        "unit": "s",
        "spread": cold["range_s"][1] - cold["range_s"][0],
        "n": runs,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
        "rival": "import jax",
        "cases": report,
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
