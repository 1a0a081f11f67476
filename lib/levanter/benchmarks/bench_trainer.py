"""What the loop costs beside the compiled step, and what watching every step costs inside it.

Overhead: a model so small that its step takes well under a millisecond, trained by ``Trainer.train`` with the default
hooks and files, against a bare loop over the same compiled function. Runs alternate; per step and run the process CPU
time between two reports is taken, its median is a run's figure. ``loop`` gets ready batches, ``loader`` reads them from
a dataset as a run does. Watching: the C1 step of ``bench_step.py`` with norms of gradients and parameters, compiled to
watch every step, every tenth, and none, interleaved step by step; equal losses are checked first. One thread. Prints
one JSON line; ``value`` is the overhead of ``loop`` in milliseconds of CPU time a step.

    python lib/levanter/benchmarks/bench_trainer.py [--smoke] [--steps N] [--rounds N]
"""

# ruff: noqa: E402 - the flags must be set before JAX is imported

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time

FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
os.environ.setdefault("OMP_NUM_THREADS", "1")

import haliax as hax
import jax
import numpy as np
from haliax import Axis
from levanter.callbacks.watch import WatchConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.examples import LmExample
from levanter.models.llama import LlamaConfig
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.step import LOSS, StepSpec, build_train_step
from levanter.throughput import WorkPerExample
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig
from levanter.trainer_state import TrainerState

TINY = LlamaConfig(max_seq_len=8, hidden_dim=8, intermediate_dim=16, num_layers=1, num_heads=1, num_kv_heads=1)
C1 = LlamaConfig(max_seq_len=64, hidden_dim=128, intermediate_dim=352, num_layers=4, num_heads=4, num_kv_heads=4)
KEY = jax.random.PRNGKey(0)


def loss_fn(model, batch, *, key=None):
    return next_token_loss(model, batch)


def fresh(config, vocab):
    optimizer = AdamConfig(learning_rate=1e-3).build(10_000)
    return optimizer, lambda: TrainerState.init(optimizer, config.build(Axis("vocab", vocab), key=KEY), key=KEY)


class Ready:
    """A loader whose batches cost nothing."""

    def __init__(self, loader):
        self.batch = loader.batch_at(0)
        self.batch_shapes = loader.batch_shapes

    def iter_from_step(self, step):
        while True:
            yield self.batch


def trained(steps, ready):
    """Median CPU milliseconds a step of a whole run of the trainer."""
    Pos = Axis("position", 8)
    dataset = ListAsyncDataset([LmExample.causal(hax.named(np.arange(8, dtype=np.int32), Pos))] * 64).repeat()
    times = []
    with tempfile.TemporaryDirectory() as folder:
        config = TrainerConfig(
            train_batch_size=2, num_train_steps=steps, log_dir=folder, checkpointer=None, watch=WatchConfig(interval=0)
        )
        optimizer, _ = fresh(TINY, 16)
        work = WorkPerExample(tokens=8, flops=1e6)
        with Trainer(config, optimizer, loss_fn, work=work, progress=True) as trainer:
            trainer.add_metrics_hook(lambda step, metrics: times.append(time.process_time()))
            loader = trainer.data_loader(dataset)
            loader = Ready(loader) if ready else loader
            build = lambda: TINY.build(Axis("vocab", 16), key=KEY)  # noqa: E731 - traced by the trainer
            trainer.train(trainer.initial_state(KEY, model_init=build, loader=loader), loader)
    return 1e3 * statistics.median(np.diff(times)[10:])


def bare(steps):
    """The same step, called in a loop that looks at every loss one step late."""
    _, init = fresh(TINY, 16)
    step = build_train_step(StepSpec(loss_fn))
    tokens = hax.named(np.tile(np.arange(8, dtype=np.int32), (2, 1)), ("batch", "position"))
    batch = jax.device_put(LmExample.causal(tokens))
    state, pending, times = jax.jit(init)(), None, []
    for _ in range(steps):
        state, outputs = step(state, batch)
        if pending is not None:
            float(pending[LOSS])
        pending = outputs
        times.append(time.process_time())
    return 1e3 * statistics.median(np.diff(times)[10:])


def watched(steps):
    """CPU milliseconds a step by how often norms are watched, interleaved."""
    _, init = fresh(C1, 65)
    tokens = np.random.default_rng(0).integers(0, 65, (12, 64)).astype(np.int32)
    batch = jax.device_put(LmExample.causal(hax.named(tokens, ("batch", "position"))))
    kinds = {"none": None, "tenth": WatchConfig(interval=10), "every": WatchConfig(interval=1)}
    programs = {name: build_train_step(StepSpec(loss_fn, watch=watch)) for name, watch in kinds.items()}
    states = {name: jax.jit(init)() for name in kinds}
    times = {name: [] for name in kinds}
    for index in range(steps + 3):
        losses = set()
        for name, program in programs.items():
            start = time.process_time()
            states[name], outputs = program(states[name], batch)
            losses.add(float(jax.device_get(outputs)[LOSS]))
            jax.block_until_ready(states[name])
            times[name].append(1e3 * (time.process_time() - start))
        if index < 3 and len(losses) != 1:
            raise SystemExit(f"watching changes the step: losses={sorted(losses)}")
    return {name: values[3:] for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    steps, rounds = (30, 1) if args.smoke else (args.steps, args.rounds)
    os.environ.setdefault("MARIN_PROGRESS", "0")
    figures = {"loop": [], "loader": [], "bare": []}
    for _ in range(rounds):
        figures["loop"].append(trained(steps, ready=True))
        figures["bare"].append(bare(steps))
        figures["loader"].append(trained(steps, ready=False))
    watch = watched(5 if args.smoke else steps // 4)
    # A busy machine only ever adds: the least of the runs is the closest to an idle one.
    least = {name: min(values) for name, values in figures.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(watch[name], watch["none"], strict=True))
        for name in ("tenth", "every")
    }
    result = {
        "name": "trainer_overhead",
        "value": least["loop"] - least["bare"],
        "unit": "ms of CPU time a step",
        "spread": max(figures["loop"]) - min(figures["loop"]),
        "n": steps * rounds,
        "with_loader_ms": least["loader"] - least["bare"],
        "step_ms": figures,
        "watch": {
            "min_ms": {name: min(values) for name, values in watch.items()},
            "ratio_of_min": {name: min(watch[name]) / min(watch["none"]) for name in ratios},
            "ratio_median": ratios,
        },
        "machine": f"{platform.machine()} {os.cpu_count()} cpus, one thread",
        "load_average": os.getloadavg()[0],
        "rival": "the compiled step in a bare loop",
    }
    json.dump(result, sys.stdout, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
