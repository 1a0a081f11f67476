"""How fast batches come out of the loader, against a raw memory map.

Ours: eight token caches, block shuffle, mixture, causal examples with document masks, batches on the device.
Rival: one memory-mapped int32 file, rows at the very positions that ours reads, copied to the device. It is the upper
bound: no compression, no shuffle arithmetic, no masks. Tokens of the first batches are checked to be equal.
The two are timed in turns, after one warm turn each; the median of the turns is reported.

    python lib/levanter/benchmarks/bench_loader.py [--smoke]
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time

import haliax as hax
import jax
import numpy as np
from levanter.data.loader import DataLoader
from levanter.data.mixture import MixtureDataset
from levanter.data.text.datasets import CausalLmDataset, TokenSeqDataset
from levanter.store.cache import SerialCacheWriter
from levanter.store.jagged_array import PreparedBatch
from levanter.store.ledger import FieldSpec

COMPONENTS = 8
BATCH = 128


def make_tokens(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.zipf(1.2, size=count) % 32_000).astype(np.int32)


def make_stream(folder: pathlib.Path, tokens: list[np.ndarray], seq_len: int) -> MixtureDataset:
    Pos = hax.Axis("position", seq_len)
    datasets = {}
    for number, flat in enumerate(tokens):
        with SerialCacheWriter(str(folder / f"c{number}"), {"input_ids": FieldSpec("int32")}) as writer:
            ends = np.arange(500, len(flat) + 1, 500, dtype=np.int64)
            writer.write_columns({"input_ids": PreparedBatch(flat[: ends[-1]], ends)})
        examples = CausalLmDataset(TokenSeqDataset(writer.result(), seq_len), Pos, eos_id=0)
        key = jax.random.fold_in(jax.random.PRNGKey(0), number)
        datasets[f"c{number}"] = examples.block_shuffle(io_block_size=256, window_blocks=512, key=key)
    return MixtureDataset(datasets, {name: 1.0 for name in datasets}, 2048, key=jax.random.PRNGKey(1))


def rows_of(stream: MixtureDataset, tokens: list[np.ndarray], seq_len: int, first: int, last: int) -> np.ndarray:
    """Where the rows that ours reads lie in all tokens concatenated."""
    starts = np.cumsum([0, *(len(flat) for flat in tokens)])
    components, running = stream.locate(range(first, last))
    rows = np.empty(last - first, dtype=np.int64)
    for number, dataset in enumerate(stream.datasets.values()):
        mine = np.flatnonzero(components == number)
        length = len(dataset.as_sync_dataset())
        index_map = dataset._map
        rows[mine] = starts[number] + index_map(running[mine] % length) * seq_len
    return rows


def run_ours(loader: DataLoader, first: int, steps: int) -> float:
    began = time.perf_counter()
    batches = loader.iter_from_step(first)
    for _ in range(steps):
        jax.block_until_ready(next(batches).tokens.array)
    seconds = time.perf_counter() - began
    batches.stop()
    return seconds


def run_rival(flat: np.ndarray, rows: np.ndarray, seq_len: int) -> float:
    began = time.perf_counter()
    for step in range(0, len(rows), BATCH):
        batch = np.stack([flat[row : row + seq_len] for row in rows[step : step + BATCH].tolist()])
        jax.block_until_ready(jax.device_put(batch))
    return time.perf_counter() - began


def lock_hash() -> str:
    lock = pathlib.Path(__file__).resolve().parents[3] / "uv.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:16] if lock.exists() else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="little data, one turn")
    smoke = parser.parse_args().smoke
    seq_len, per_component, steps, turns = (256, 200_000, 8, 1) if smoke else (2048, 8_000_000, 64, 5)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        tokens = [make_tokens(per_component, seed) for seed in range(COMPONENTS)]
        stream = make_stream(folder, tokens, seq_len)
        np.concatenate(tokens).tofile(folder / "flat.bin")
        flat = np.memmap(folder / "flat.bin", dtype=np.int32, mode="r")
        loader = DataLoader(stream, BATCH)
        batches = loader.iter_from_step(0)
        for step in range(4):
            rows = rows_of(stream, tokens, seq_len, step * BATCH, (step + 1) * BATCH)
            expected = np.stack([flat[row : row + seq_len] for row in rows.tolist()])
            assert np.array_equal(np.asarray(next(batches).tokens.array), expected), "ours and the memory map disagree"
        batches.stop()
        ours_s, rival_s = [], []
        for turn in range(turns + 1):
            ours_s.append(run_ours(loader, turn * steps, steps))
            rows = rows_of(stream, tokens, seq_len, turn * steps * BATCH, (turn + 1) * steps * BATCH)
            rival_s.append(run_rival(flat, rows, seq_len))
        ours_s, rival_s = ours_s[1:], rival_s[1:]
        began = time.perf_counter()
        loader.batch_at(1_000_000)
        resume_s = time.perf_counter() - began
    per_turn = steps * BATCH * seq_len / 1e6
    rates = [per_turn / seconds for seconds in ours_s]
    print(
        json.dumps(
            {
                "name": "levanter.loader.mixture_block_shuffle",
                "value": round(statistics.median(rates), 2),
                "unit": "Mtok/s",
                "spread": [round(min(rates), 2), round(max(rates), 2)],
                "n": len(rates),
                "rival": "numpy memmap rows to device",
                "rival_value": round(statistics.median(per_turn / seconds for seconds in rival_s), 2),
                "ratio": round(statistics.median(a / b for a, b in zip(ours_s, rival_s, strict=True)), 3),
                "resume_to_step_1e6_s": round(resume_s, 4),
                "seq_len": seq_len,
                "batch": BATCH,
                "components": COMPONENTS,
                "rival_version": importlib.metadata.version("numpy"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cpus, python {platform.python_version()}",
                "lock_hash": lock_hash(),
            },
            sort_keys=True,
        )
    )


if __name__ == "__main__":
    main()
