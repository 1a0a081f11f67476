"""Convergence against raw JAX: the same text, the same start, the same batches, two programs.

Levanter's compiled step and the hand-written program of ``bench_step.py`` train on Shakespeare by character from one
initialisation. Prints one JSON line: the largest relative gap of the training loss over the first 50 steps (``value``;
the run fails above 1e-5) and over all, and the mean loss of the last 50 steps of both. ``--svg`` draws both curves.

    python lib/levanter/benchmarks/convergence.py [--smoke] [--steps 600] [--svg FILE] [--text FILE]
"""

import argparse
import gzip
import json
import os
import pathlib
import platform
import sys

import bench_step as bench
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from levanter.data.text.examples import LmExample
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.optim.schedules import Constant
from levanter.step import StepSpec, build_train_step
from levanter.trainer_state import TrainerState

TEXT = pathlib.Path(__file__).parent.parent / "examples/shakespeare_char/tinyshakespeare.txt.gz"
SHAPE = bench.SHAPES["c1"]


def batches(path, steps):
    """Random windows of the first nine tenths of the text, as nanoGPT draws them."""
    data = pathlib.Path(path).read_bytes()
    text = (gzip.decompress(data) if str(path).endswith(".gz") else data).decode()
    ids = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = np.asarray([ids[character] for character in text[: int(0.9 * len(text))]], np.int32)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(tokens) - SHAPE["length"], SHAPE["batch"])
        yield jnp.asarray(tokens[starts[:, None] + np.arange(SHAPE["length"])])


def losses(path, steps):
    """Training losses of ours and of the raw program, step by step."""
    config = LlamaConfig(
        max_seq_len=SHAPE["length"], hidden_dim=SHAPE["embed"], intermediate_dim=SHAPE["mlp"],
        num_layers=SHAPE["layers"], num_heads=SHAPE["heads"], num_kv_heads=SHAPE["heads"],
    )  # fmt: skip
    key = jax.random.PRNGKey(1337)
    model = jax.jit(lambda: LlamaLMHeadModel.init(Axis("vocab", SHAPE["vocab"]), config, key=key))()
    params = bench.raw_params(model, scan=True)
    optimizer = AdamConfig(learning_rate=bench.RATE, warmup=0, lr_schedule=Constant()).build(steps)
    state = TrainerState.init(optimizer, model, key=key)
    ours = build_train_step(StepSpec(lambda m, b, key=None: next_token_loss(m, b)))
    theirs, raw_optimizer = bench.raw_step(SHAPE, scan=True)
    opt_state = raw_optimizer.init(params)
    axes = (Axis("batch", SHAPE["batch"]), Axis("position", SHAPE["length"]))
    rows = []
    for tokens in batches(path, steps):
        state, outputs = ours(state, LmExample.causal(hax.named(tokens, axes)))
        params, opt_state, raw_loss = theirs(params, opt_state, tokens)
        rows.append((float(outputs["train/loss"]), float(raw_loss)))
    return np.asarray(rows)


def draw(rows, path):
    """Both curves, smoothed over 10 steps, as an SVG of lines."""
    window = 10
    smooth = np.stack([np.convolve(rows[:, i], np.ones(window) / window, "valid") for i in range(2)], 1)
    low, high = 1.4, 4.4

    def line(values):
        x = 40 + 560 * np.arange(len(values)) / (len(values) - 1)
        y = 20 + 240 * (high - values) / (high - low)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))

    ticks = "".join(
        f'<line x1="40" x2="600" y1="{20 + 240 * (high - t) / (high - low):.1f}" '
        f'y2="{20 + 240 * (high - t) / (high - low):.1f}" stroke="#ddd"/>'
        f'<text x="8" y="{24 + 240 * (high - t) / (high - low):.1f}">{t:.1f}</text>'
        for t in (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    )
    pathlib.Path(path).write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 300" font-family="sans-serif" font-size="11" '
        'role="img"><title>Training loss in nats over updates, levanter and raw JAX</title>'
        f'<rect width="620" height="300" fill="#fff"/>{ticks}'
        f'<polyline points="{line(smooth[:, 1])}" fill="none" stroke="#e08a1e" stroke-width="4"/>'
        f'<polyline points="{line(smooth[:, 0])}" fill="none" stroke="#2563a8" stroke-width="1.5"/>'
        f'<text x="400" y="50" fill="#2563a8">levanter (thin, on top)</text>'
        f'<text x="400" y="66" fill="#b86e10">raw JAX (wide, below)</text>'
        f'<text x="40" y="285">update 0</text><text x="560" y="285">{len(rows)}</text></svg>\n',
        encoding="utf-8",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--svg")
    args = parser.parse_args()
    rows = losses(args.text, 60 if args.smoke else args.steps)
    gap = np.abs(rows[:, 0] - rows[:, 1]) / rows[:, 1]
    if args.svg:
        draw(rows, args.svg)
    result = {
        "name": "convergence_gap_first_50_steps",
        "value": float(gap[:50].max()),
        "unit": "relative difference of the training loss",
        "spread": float(gap.max()),
        "n": len(rows),
        "last_50_ours": float(rows[-50:, 0].mean()),
        "last_50_raw": float(rows[-50:, 1].mean()),
        "rival": "raw jax",
        "rival_version": jax.__version__,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()
    if gap[:50].max() > 1e-5:
        raise SystemExit("the curves differ")


if __name__ == "__main__":
    main()
