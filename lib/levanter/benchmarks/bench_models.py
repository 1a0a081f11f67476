"""Attention memory and time, loading of checkpoints, and the price of an import; rivals beside them in one run.

    python bench_models.py attention [--smoke]     blockwise against vanilla, time at 512 and peak memory by length
    python bench_models.py load [--gigabytes 2]    peak memory and time of a Hugging Face folder, sharded; with --rival
                                                   PYTHON (torch and transformers) the same folder in transformers
    python bench_models.py imports                 CPU seconds of levanter.models.llama above jax

Every measurement of memory runs in a process of its own. Prints one JSON line each.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from levanter.layers.attention import AttentionBackend, AttentionSettings, dot_product_attention
from levanter.layers.attention_mask import AttentionMask

SHARD_BYTES = 250_000_000
ROUNDS = 3


def child(code: str, python: str = sys.executable, **environment: str) -> dict[str, Any]:
    """Run code in a fresh process; its last line is JSON, to which its peak resident bytes are added."""
    head = "import json, os, resource, sys, time\ndef peak(): "
    head += "return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
    tail = "\nprint(json.dumps({**result, 'peak': peak()}))"
    done = subprocess.run(
        [python, "-c", head + code + tail],
        capture_output=True,
        text=True,
        check=False,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def report(name: str, value: float, unit: str, **details: Any) -> None:
    """Print one result."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "machine": machine, **details}), flush=True)


def attention_time(length: int, repeats: int) -> None:
    """Forward and backward of both back-ends, interleaved, equal outputs first."""
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.standard_normal((4, 8, length, 64)), jnp.float32)
    k, v = (jnp.asarray(rng.standard_normal((4, 4, length, 64)), jnp.float32) for _ in range(2))

    def make(backend: AttentionBackend, block: int) -> Any:
        settings = AttentionSettings(backend=backend, block_size=block)
        loss = lambda *a: jnp.sum(dot_product_attention(*a, AttentionMask.causal(), settings) ** 2)  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))

    runs = {"vanilla": make(AttentionBackend.VANILLA, 0), "blockwise": make(AttentionBackend.JAX_FLASH, 256)}
    results = {name: run(q, k, v) for name, run in runs.items()}
    for a, b in zip(*(jax.tree.leaves(r) for r in results.values()), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-3)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(q, k, v))
            best[name] = min(best[name], time.perf_counter() - start)
    seconds = {name: round(value, 4) for name, value in best.items()}
    report(f"attention_time_{length}", best["blockwise"] / best["vanilla"], "blockwise / vanilla", seconds=seconds)


MEMORY = """
import jax, jax.numpy as jnp
from levanter.layers.attention import AttentionBackend, AttentionSettings, dot_product_attention
from levanter.layers.attention_mask import AttentionMask
settings = AttentionSettings(backend=AttentionBackend({backend!r}), block_size=512)
x = jax.ShapeDtypeStruct((1, 4, {length}, 64), jnp.float32)
loss = lambda *a: jnp.sum(dot_product_attention(*a, AttentionMask.causal(), settings) ** 2)
compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile()
result = {{"temp": compiled.memory_analysis().temp_size_in_bytes}}
"""


def attention_memory(lengths: list[int]) -> None:
    """Bytes of temporaries that XLA assigns to forward and backward."""
    table = {
        backend: [child(MEMORY.format(backend=backend, length=n))["temp"] for n in lengths]
        for backend in ("jax_flash", "vanilla")
    }
    growth = table["jax_flash"][-1] / table["jax_flash"][0] / (lengths[-1] / lengths[0])
    report("attention_memory_growth", growth, "x linear", lengths=lengths, temp_bytes=table)


MAKE = """
import jax, numpy as np
from haliax import Axis
from levanter.compat.hf_checkpoints import save_hf_checkpoint
from levanter.models.llama import LlamaConfig
config = LlamaConfig(hidden_dim=1024, intermediate_dim=2816, num_layers={layers}, num_heads=16, num_kv_heads=16,
                     init_scheme="normal")
model = jax.jit(lambda key: config.build(Axis("vocab", 32000), key=key))(jax.random.PRNGKey(0))
save_hf_checkpoint(model, config, {path!r}, max_shard_bytes={shard})
result = {{}}
"""
LOAD = """
import jax
from levanter.compat.hf_checkpoints import HFCheckpointConverter
jax.devices()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start, busy = time.perf_counter(), time.process_time()
model = HFCheckpointConverter.from_hf({path!r}).load_pretrained()
jax.block_until_ready(model)
size = sum(x.nbytes for x in jax.tree.leaves(model))
result = {{"before": before, "seconds": time.perf_counter() - start, "cpu": time.process_time() - busy, "size": size}}
"""
RIVAL = """
import torch, transformers
before = peak()
start, busy = time.perf_counter(), time.process_time()
model = transformers.AutoModelForCausalLM.from_pretrained({path!r}, dtype=torch.float32)
for p in model.parameters(): p.data.sum()
size = sum(p.numel() * 4 for p in model.parameters())
result = {{"before": before, "seconds": time.perf_counter() - start, "cpu": time.process_time() - busy, "size": size}}
"""


def load(gigabytes: float, rival: str | None) -> None:
    """Load a folder made here; report the peak above the process as it was, less the size, in shards."""
    layers = max(1, int((gigabytes * 1e9 - 262e6) / 51.4e6))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        child(MAKE.format(path=path, layers=layers, shard=SHARD_BYTES))
        shards = len(list(Path(path).glob("*.safetensors")))
        runs = {"ours": (LOAD, sys.executable), **({"transformers": (RIVAL, rival)} if rival else {})}
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, (code, python) in runs.items():
                found[name].append(child(code.format(path=path), python))
        for name, got in found.items():
            over = max(one["peak"] - one["before"] - one["size"] for one in got)
            figures = {key: round(got[-1][key] / 1e6) for key in ("before", "peak", "size")}
            report(
                f"load_{name}", over / SHARD_BYTES, "shards above the model's size", megabytes=figures, files=shards,
                seconds=[round(one["seconds"], 2) for one in got], cpu_seconds=[round(one["cpu"], 2) for one in got],
            )  # fmt: skip


IMPORT = """
import jax
start = time.process_time()
import levanter.models.llama
seconds = time.process_time() - start
result = {"seconds": seconds, "heavy": [m for m in ("transformers", "wandb", "torch") if m in sys.modules]}
"""


def imports(repeats: int) -> None:
    """CPU seconds above jax, the least of several processes."""
    child(IMPORT)
    got = [child(IMPORT) for _ in range(repeats)]
    peak = round(min(r["peak"] for r in got) / 1e6)
    report("import_llama", min(r["seconds"] for r in got), "CPU s above jax", heavy=got[0]["heavy"], megabytes=peak)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["attention", "load", "imports"])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rival")
    arguments = parser.parse_args()
    if arguments.what == "attention":
        attention_time(512, 3 if arguments.smoke else 20)
        attention_memory([1024, 2048] if arguments.smoke else [1024, 2048, 4096, 8192])
    elif arguments.what == "load":
        load(0.4 if arguments.smoke else arguments.gigabytes, arguments.rival and os.path.abspath(arguments.rival))
    else:
        imports(2 if arguments.smoke else 5)


if __name__ == "__main__":
    main()
