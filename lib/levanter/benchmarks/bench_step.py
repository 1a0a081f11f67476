"""Training step: levanter's compiled step against a hand-written JAX program of the same arithmetic.

Both are interleaved in one process on one thread in alternating order, the losses are checked equal first, and process
CPU time is compared, which other load on the machine hardly moves. The rival is the best program we know how to write
without a framework: layers unrolled with arrays of their own, every activation kept, linear layers whose backward runs
in storage order, heads before positions, donated buffers. Ours runs with ``scan_layers: false`` and
``gradient_checkpointing: false``. ``--scan`` compares the default configuration instead, scan over layers with remat
that keeps matrix products, with a rival written that way.

The process starts itself again with glibc told to keep freed memory: else every step pays for clearing the pages of its
temporaries, ours, theirs and PyTorch's alike, and the figures say more about page faults than about the programs.

Prints one JSON line; ``value`` is ours / raw for the first case, the mean of the middle three fifths of the ratios of
all rounds, with its bootstrap interval of 95 %.

    python lib/levanter/benchmarks/bench_step.py [--smoke] [--steps N] [--only c1|c2] [--scan] [--torch PYTHON]

``--torch`` names the interpreter of an environment with PyTorch, whose eager step (``torch_rival.py``) is interleaved.

C1: 4 layers, 4 heads, D 128, S 64, batch 12, V 65. C2: 6 layers, 6 heads, D 384, S 256, batch 4, V 65.
"""

# ruff: noqa: E402 - the flags must be set before JAX is imported

import argparse
import functools
import json
import math
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time

FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
os.environ.setdefault("OMP_NUM_THREADS", "1")
KEEP_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from haliax import Axis
from jax import lax
from levanter.data.text.examples import LmExample
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.optim.schedules import Constant
from levanter.step import StepSpec, build_train_step
from levanter.trainer_state import TrainerState

SHAPES = {
    "c1": {"layers": 4, "heads": 4, "embed": 128, "length": 64, "batch": 12, "vocab": 65, "mlp": 352},
    "c2": {"layers": 6, "heads": 6, "embed": 384, "length": 256, "batch": 4, "vocab": 65, "mlp": 1024},
}
RATE = 1e-3
WARM_UP = 4


@jax.custom_vjp
def linear(x, w):
    return lax.dot_general(x, w, (((x.ndim - 1,), (0,)), ((), ())))


def _linear_fwd(x, w):
    return linear(x, w), (x, w)


def _linear_bwd(saved, dy):
    x, w = saved
    lead = tuple(range(x.ndim - 1))
    dx = lax.dot_general(dy, w, (((dy.ndim - 1,), (1,)), ((), ())))
    return dx, lax.dot_general(x, dy, ((lead, lead), ((), ())))


linear.defvjp(_linear_fwd, _linear_bwd)


def raw_step(shape, scan):
    """The rival: ``(params, opt_state, tokens) -> (params, opt_state, loss)`` and its optimizer."""
    heads, embed, length, batch = (shape[k] for k in ("heads", "embed", "length", "batch"))
    size = embed // heads
    angle = np.arange(length)[:, None] * 10_000.0 ** -(np.arange(0, size, 2) / size)
    cos = jnp.asarray(np.concatenate([np.cos(angle)] * 2, -1), jnp.float32)
    sin = jnp.asarray(np.concatenate([-np.sin(angle), np.sin(angle)], -1), jnp.float32)
    mask = jnp.tril(jnp.ones((length, length), bool))

    def norm(x, w):
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w

    def turn(x):
        return x * cos + jnp.concatenate([x[..., size // 2 :], x[..., : size // 2]], -1) * sin

    def split(x):
        return x.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)

    def block(x, p):
        h = norm(x, p["n1"])
        q, k, v = (split(linear(h, p[name])) for name in ("q", "k", "v"))
        scores = jnp.einsum("bhqd,bhkd->bhqk", turn(q) * size**-0.5, turn(k))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
        out = jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(batch, length, embed)
        x = x + linear(out, p["o"])
        h = norm(x, p["n2"])
        return x + linear(jax.nn.silu(linear(h, p["g"])) * linear(h, p["u"]), p["d"])

    saved = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False)

    def loss_fn(params, tokens):
        x = params["table"][tokens]
        if scan:
            x, _ = lax.scan(lambda x, p: (saved(x, p), None), x, params["blocks"])
        else:
            for p in params["blocks"]:
                x = block(x, p)
        logits = linear(norm(x, params["norm"]), params["head"])
        labels = jnp.roll(tokens, -1, 1)
        weight = jnp.arange(length) < length - 1
        picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
        return jnp.sum((jax.nn.logsumexp(logits, -1) - picked) * weight) / (batch * (length - 1))

    decayed_block = {k: k[0] != "n" for k in "q k v o g u d n1 n2".split()}
    blocks = decayed_block if scan else [decayed_block] * shape["layers"]
    decayed = {"table": False, "norm": False, "head": True, "blocks": blocks}
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.95),
        optax.add_decayed_weights(0.1, decayed),
        optax.scale(-RATE),
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, optimizer


def raw_params(model, scan):
    """The model's weights in the rival's layout, copied."""
    stacked = model.transformer.layers.stacked
    attn, mlp = stacked.self_attn, stacked.mlp
    layers, embed = attn.q_proj.weight.array.shape[:2]
    weights = {
        "q": attn.q_proj, "k": attn.k_proj, "v": attn.v_proj, "o": attn.o_proj,
        "g": mlp.gate_proj, "u": mlp.up_proj, "d": mlp.down_proj,
    }  # fmt: skip
    blocks = {name: jnp.array(layer.weight.array).reshape(layers, -1, embed) for name, layer in weights.items()}
    for name in ("q", "k", "v", "g", "u"):
        blocks[name] = jnp.array(weights[name].weight.array).reshape(layers, embed, -1)
    blocks["n1"] = jnp.array(stacked.input_layernorm.weight.array)
    blocks["n2"] = jnp.array(stacked.post_attention_layernorm.weight.array)
    return {
        "table": jnp.array(model.embeddings.token_embeddings.weight.array),
        "norm": jnp.array(model.transformer.norm.weight.array),
        "head": jnp.array(model.lm_head.weight.array),
        "blocks": blocks if scan else [{k: v[index] for k, v in blocks.items()} for index in range(layers)],
    }


class Torch:
    """The PyTorch rival's process, or nothing."""

    def __init__(self, python, shape):
        self.process, self.version = None, "not measured"
        if python:
            command = [python, str(pathlib.Path(__file__).with_name("torch_rival.py")), json.dumps(shape)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.version = self.process.stdout.readline().strip()

    def step_ms(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        if self.process is not None:
            self.process.communicate()


def compare(name, steps, scan, torch_python=None):
    """Interleave the programs; return milliseconds of CPU time per step of each."""
    shape = SHAPES[name]
    config = LlamaConfig(
        max_seq_len=shape["length"], hidden_dim=shape["embed"], intermediate_dim=shape["mlp"],
        num_layers=shape["layers"], num_heads=shape["heads"], num_kv_heads=shape["heads"],
        scan_layers=scan, gradient_checkpointing=scan,
    )  # fmt: skip
    key = jax.random.PRNGKey(0)
    model = jax.jit(lambda: LlamaLMHeadModel.init(Axis("vocab", shape["vocab"]), config, key=key))()
    params = raw_params(model, scan)
    optimizer = AdamConfig(learning_rate=RATE, warmup=0, lr_schedule=Constant()).build(1000)
    state = TrainerState.init(optimizer, model, key=key)
    step = build_train_step(StepSpec(lambda m, b, key=None: next_token_loss(m, b)))
    raw, raw_optimizer = raw_step(shape, scan)
    opt_state = raw_optimizer.init(params)
    axes = (Axis("batch", shape["batch"]), Axis("position", shape["length"]))
    rng = np.random.default_rng(0)
    times = {"ours": [], "raw": [], "torch": []}
    torch = Torch(torch_python, shape)
    gap = 0.0

    def ours():
        nonlocal state
        state, outputs = step(state, batch)
        return float(jax.block_until_ready(outputs)["train/loss"])

    def theirs():
        nonlocal params, opt_state
        params, opt_state, loss = raw(params, opt_state, tokens)
        return float(jax.block_until_ready(loss))

    for index in range(steps + WARM_UP):
        tokens = jnp.asarray(rng.integers(0, shape["vocab"], (shape["batch"], shape["length"])), jnp.int32)
        batch = LmExample.causal(hax.named(tokens, axes))
        losses = {}
        for program in (ours, theirs) if index % 2 else (theirs, ours):
            start = time.process_time()
            losses[program] = program()
            spent = time.process_time() - start
            if index >= WARM_UP:
                times["ours" if program is ours else "raw"].append(1e3 * spent)
        gap = max(gap, abs(losses[ours] - losses[theirs]) / losses[theirs])
        if torch.process is not None:
            milliseconds = torch.step_ms()
            if index >= WARM_UP:
                times["torch"].append(milliseconds)
    torch.close()
    if gap > 1e-4:
        raise SystemExit(f"the programs differ: case={name}, relative loss gap={gap}")
    return times, gap, torch.version


def ratio_with_interval(times, rival):
    """Trimmed geometric mean of ours / rival over the rounds, and its bootstrap interval of 95 %."""
    logs = [math.log(a / b) for a, b in zip(times["ours"], times[rival], strict=True)]
    cut = len(logs) // 5
    trimmed = lambda sample: math.exp(statistics.fmean(sorted(sample)[cut : len(sample) - cut]))  # noqa: E731
    rng = random.Random(0)
    means = sorted(trimmed(rng.choices(logs, k=len(logs))) for _ in range(1000))
    return trimmed(logs), [means[25], means[974]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", choices=sorted(SHAPES))
    parser.add_argument("--scan", action="store_true", help="compare scans over layers with remat")
    parser.add_argument("--torch", help="interpreter of an environment with PyTorch")
    args = parser.parse_args()
    cases = [args.only] if args.only else ["c1"] if args.smoke else ["c1", "c2"]
    report = {}
    for name in cases:
        times, gap, torch_version = compare(name, 3 if args.smoke else args.steps, args.scan, args.torch)
        report[name] = {"loss_gap": gap}
        for rival in ("raw", "torch"):
            if times[rival]:
                ratio, interval = ratio_with_interval(times, rival)
                report[name] |= {f"ours_over_{rival}": ratio, f"ours_over_{rival}_95": interval}
        report[name] |= {f"{who}_ms": [min(ms), statistics.median(ms)] for who, ms in times.items() if ms}
    first = report[cases[0]]
    result = {
        "name": "train_step_ours_over_raw_jax",
        "value": first["ours_over_raw"],
        "unit": "ratio of CPU time",
        "spread": first["ours_over_raw_95"],
        "n": 3 if args.smoke else args.steps,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus, one thread",
        "load_average": os.getloadavg()[0],
        "rival": "raw jax, scan over layers" if args.scan else "raw jax, layers unrolled",
        "rival_version": jax.__version__,
        "torch_version": torch_version,
        "cases": report,
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()


if __name__ == "__main__":
    if not set(KEEP_MEMORY) <= set(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    main()
