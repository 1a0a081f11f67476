"""One script for one accelerator: train a Llama on random tokens, print MFU, tokens a second and memory.

    python lib/levanter/benchmarks/gpu_mfu.py [--size 125m|350m|1b] [--batch N] [--length N] [--steps N] [--mp POLICY]

Needs the extra ``gpu`` (or ``tpu``) and nothing else: no data, no network, no account. Runs on CPU too (``--smoke``),
against a calibrated matrix product. Prints one JSON line; ``value`` is the median MFU in per cent of the hardware's
dense bfloat16 peak, with every score of attention counted (convention ``full``).
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from levanter.data.text.examples import LmExample
from levanter.flops import device_peak_flops
from levanter.memory_estimate import compiled_memory
from levanter.mesh import MeshConfig
from levanter.models.llama import LlamaConfig
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.precision import Policy
from levanter.sharding import place, tree_shardings
from levanter.step import StepSpec, build_train_step
from levanter.trainer_state import TrainerState

SIZES = {
    "smoke": {"hidden_dim": 64, "intermediate_dim": 176, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4},
    "125m": {"hidden_dim": 768, "intermediate_dim": 2048, "num_layers": 12, "num_heads": 12, "num_kv_heads": 12},
    "350m": {"hidden_dim": 1024, "intermediate_dim": 2816, "num_layers": 24, "num_heads": 16, "num_kv_heads": 16},
    "1b": {"hidden_dim": 2048, "intermediate_dim": 5632, "num_layers": 20, "num_heads": 16, "num_kv_heads": 16},
}


def measure(args):
    config = LlamaConfig(max_seq_len=args.length, **SIZES[args.size])
    policy, key = Policy.parse(args.mp), jax.random.PRNGKey(0)
    mesh_config = MeshConfig()
    mesh = mesh_config.device_mesh()
    compute, params = mesh_config.resolved_compute_mapping(mesh), mesh_config.resolved_param_mapping(mesh)
    optimizer = AdamConfig(learning_rate=1e-4, warmup=0).build(1000)

    def fresh():
        return TrainerState.init(optimizer, config.build(Axis("vocab", args.vocab), key=key), key=key, mp=policy)

    shardings = tree_shardings(eqx.filter_eval_shape(fresh), params, mesh)
    state = jax.jit(fresh, out_shardings=shardings)()
    axes = (Axis("batch", args.batch * mesh.size), Axis("position", args.length))
    tokens = np.random.default_rng(0).integers(0, args.vocab, [axis.size for axis in axes]).astype(np.int32)
    batch = place(LmExample.causal(hax.named(jnp.asarray(tokens), axes)), compute, mesh)
    spec = StepSpec(
        lambda model, batch, key=None: next_token_loss(model, batch),
        mesh=None if mesh.size == 1 else mesh, compute_mapping=compute, param_mapping=params,
    )  # fmt: skip
    step = build_train_step(spec)
    memory = compiled_memory(step, state, batch)
    seconds = []
    for _ in range(args.steps + 3):
        start = time.perf_counter()
        state, outputs = step(state, batch)
        loss = float(outputs["train/loss"])
        seconds.append(time.perf_counter() - start)
    return config, mesh, memory, seconds[3:], loss, axes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--size", choices=sorted(SIZES), default="125m")
    parser.add_argument("--batch", type=int, default=16, help="examples per device")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mp", default="p=f32,c=bfloat16")
    args = parser.parse_args()
    if args.smoke:
        args.size, args.batch, args.length, args.vocab, args.steps = "smoke", 2, 64, 100, 3
    config, mesh, memory, seconds, loss, axes = measure(args)
    tokens = axes[0].size * axes[1].size
    kind, peak = device_peak_flops()
    flops = 3 * config.flops_per_token(args.vocab, args.length) * tokens
    rates = [flops / s for s in seconds]
    value = 100 * statistics.median(rates) / (peak * mesh.size) if peak else None
    stats = jax.devices()[0].memory_stats() or {}
    result = {
        "name": "train_mfu",
        "value": value,
        "unit": "% of peak",
        "spread": 100 * (max(rates) - min(rates)) / (peak * mesh.size) if peak else None,
        "n": len(seconds),
        "device": kind,
        "devices": mesh.size,
        "size": args.size,
        "parameters": config.total_trainable_params(args.vocab),
        "tokens_per_second": tokens / statistics.median(seconds),
        "tflops_per_second": statistics.median(rates) / 1e12,
        "compiled_bytes": memory.total,
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "final_loss": loss,
        "mp": args.mp,
        "jax": jax.__version__,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
