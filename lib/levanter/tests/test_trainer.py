"""The loop: accumulation, metrics, divergence, hooks, precision, stopping."""

import contextlib
import json
import math
import os
import threading
from datetime import timedelta

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from hypothesis import given
from hypothesis import strategies as st
from levanter._checkpoint.policy import KeepEvery
from levanter.callbacks.core import Hook
from levanter.callbacks.profiler import ProfileOptionsConfig, Profiler, ProfilerConfig, ProfileUploadConfig
from levanter.callbacks.watch import WatchConfig
from levanter.callbacks.watchdog import ProgressWatchdog, ProgressWatchdogConfig
from levanter.checkpoint import CheckpointerConfig, discover_latest_checkpoint
from levanter.data.dataset import ListAsyncDataset
from levanter.divergence import DivergenceConfig, DivergenceState, judge
from levanter.errors import CancelledError, ConfigError, DivergedError
from levanter.grad_accum import accumulate_gradients
from levanter.metrics import Metric, Reduction, fold_metric, infer_reduction
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.optim.model_averaging import EmaConfig
from levanter.precision import Policy, cast_floating
from levanter.throughput import WorkPerExample
from levanter.tracker.json_file import JsonFileTracker
from levanter.tracker.tracker_fns import jit_log
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig
from levanter.tree_paths import tree_digest
from rigging.timing import ManualClock


def trainer_config(tmp_path, **changes) -> TrainerConfig:
    fields = {
        "train_batch_size": 8,
        "num_train_steps": 12,
        "steps_per_eval": 6,
        "log_dir": str(tmp_path),
        "checkpointer": None,
        "watch": WatchConfig(interval=0),
        **changes,
    }
    return TrainerConfig(**fields)


def loss_fn(model, batch, *, key=None):
    jit_log({"num_examples": batch.tokens.array.shape[0]})
    return next_token_loss(model, batch, logsumexp_weight=1e-4)


def run(config, model_config, dataset, *, rate=1e-2, fn=loss_fn, cancel=None, hooks=()):
    key = jax.random.PRNGKey(0)
    optimizer = AdamConfig(learning_rate=rate, warmup=0).build(config.num_train_steps)
    work = WorkPerExample(tokens=16, flops=1e6)
    with Trainer(config, optimizer, fn, work=work, cancel=cancel, progress=False) as trainer:
        for hook, every in hooks:
            trainer.add_hook(hook, every=every)
        trainer.add_eval_hook(dataset, "held_out")
        state = trainer.initial_state(key, model_init=lambda: model_config.build(Axis("vocab", 50), key=key))
        return trainer.train(state, trainer.data_loader(dataset.repeat()))


def read(tmp_path, name="run/metrics.jsonl"):
    return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_learns_and_leaves_every_promised_metric(tmp_path, tiny_config, dataset):
    seen = []
    config = trainer_config(tmp_path, watch=WatchConfig(interval=4), log_jaxprs=True, log_xla_hlo=True)
    outcome = run(config, tiny_config, dataset, hooks=[(lambda info, force=False: seen.append(info.next_step), 5)])
    rows = read(tmp_path)
    train = {row["step"]: row for row in rows if "train/loss" in row}
    assert sorted(train) == list(range(12)) and outcome.loss == train[11]["train/loss"] < train[0]["train/loss"]
    assert {"global_step", "run_progress", "optim/learning_rate", "train/cross_entropy_loss"} <= set(train[3])
    assert train[3]["train/num_examples"] == 8
    norms = {name for name in train[3] if name.startswith("grad/norm/")}
    assert "grad/norm/total" in norms and any(".1.self_attn.q_proj" in name for name in norms)
    assert not any(name.startswith("grad/") for name in train[4])
    total = math.sqrt(sum(v**2 for k, v in train[3].items() if k.startswith("params/norm/") and k[12:] != "total"))
    assert train[3]["params/norm/total"] == pytest.approx(total, rel=1e-4)
    assert [row["step"] for row in rows if "eval/held_out/loss" in row] == [5, 11]
    assert seen == [5, 10, 12]
    assert {p.name for p in (tmp_path / "run/artifacts").iterdir()} == {"train_step.jaxpr.txt.gz", "train_step.hlo.txt"}
    timing = {k for row in read(tmp_path, "run/logs/timing.jsonl") for k in row}
    names = "examples_per_second tokens_per_second duration total_tokens total_gflops gflops_per_second mfu"
    assert {f"throughput/{n}" for n in [*names.split(), "hook_time", "loading_time"]} <= timing
    summary = json.loads((tmp_path / "run/logs/summary.json").read_text())
    assert "throughput/mean_mfu" in summary and "goodput/step_seconds" in summary


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_diverging_run_is_an_error_with_its_curve_kept(tmp_path, tiny_config, dataset):
    config = trainer_config(tmp_path, num_train_steps=200, divergence=DivergenceConfig(patience=3, warmup_steps=0))
    with pytest.raises(DivergedError) as caught:
        run(config, tiny_config, dataset, rate=1e4)
    assert caught.value.failure_category == "diverged"
    rows = read(tmp_path)
    assert rows[-1]["step"] == caught.value.step
    assert json.loads((tmp_path / "run/logs/summary.json").read_text())["diverged"] is True


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cancelled_run_saves_first_and_resumes_to_the_same_end(tmp_path, tiny_config, dataset):
    def config(folder):
        saver = CheckpointerConfig(base_path=str(folder / "ckpt"), keep=None, save_interval=None)
        return trainer_config(folder, checkpointer=saver)

    cancel = threading.Event()
    with pytest.raises(CancelledError) as caught:
        hooks = [(lambda info, force=False: cancel.set(), 7)]
        run(config(tmp_path / "a"), tiny_config, dataset, cancel=cancel, hooks=hooks)
    assert caught.value.step == 7
    assert discover_latest_checkpoint(str(tmp_path / "a/ckpt/run")).endswith("step-7")
    resumed = run(config(tmp_path / "a"), tiny_config, dataset)
    whole = run(config(tmp_path / "b"), tiny_config, dataset)
    assert tree_digest(resumed.state) == tree_digest(whole.state)
    assert read(tmp_path / "a") == read(tmp_path / "b")


def test_micro_batches_that_do_not_divide_give_the_gradient_of_the_whole(tiny_model, examples):
    weights = np.random.default_rng(0).random((7, 16)) < 0.5
    rows = examples[:7]
    tokens = np.stack([np.asarray(e.tokens.array) for e in rows])
    from haliax import NamedArray
    from levanter.data.text.examples import LmExample

    axes = (Axis("batch", 7), Axis("position", 16))
    batch = LmExample(NamedArray(jnp.asarray(tokens), axes), NamedArray(jnp.asarray(weights, jnp.float32), axes))

    def total(model, part, key):
        loss, _ = next_token_loss(model, part)
        return loss.value, (loss, {"min_x": Metric.from_value(3.0, Reduction.MIN)})

    def fn(part, key):
        (_, aux), grads = jax.value_and_grad(total, has_aux=True)(tiny_model, part, key)
        return aux, grads

    key = jax.random.PRNGKey(0)
    whole = jax.jit(lambda: accumulate_gradients(fn, batch, None, key))()
    pieces = jax.jit(lambda: accumulate_gradients(fn, batch, 3, key))()
    assert float(whole[0].result()) == pytest.approx(float(pieces[0].result()), rel=1e-5)
    assert float(pieces[1]["min_x"].result()) == 3.0
    for a, b in zip(jax.tree.leaves(whole[2]), jax.tree.leaves(pieces[2]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


finite = st.floats(-100, 100, width=32)


@given(st.lists(st.tuples(finite, st.integers(1, 5)), min_size=1, max_size=6), st.sampled_from(list(Reduction)))
def test_folding_metrics_is_exact_and_its_identity_changes_nothing(values, reduction):
    folded = Metric.identity(reduction)
    for value, count in values:
        folded = fold_metric(folded, Metric.from_value(value, reduction, count=count))
    numbers = [v for v, _ in values]
    mass = sum(c for _, c in values)
    expected = {
        Reduction.MEAN: sum(v * c for v, c in values) / mass,
        Reduction.SUM: sum(numbers),
        Reduction.MAX: max(numbers),
        Reduction.MIN: min(numbers),
        Reduction.LAST: numbers[-1],
    }[reduction]
    assert float(folded.result()) == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_reductions_follow_from_names():
    assert infer_reduction("train/max_norm") == Reduction.MAX and infer_reduction("total_tokens") == Reduction.SUM


def test_divergence_is_judged_from_the_losses_in_order():
    config = DivergenceConfig(max_loss_ratio=2.0, patience=2, warmup_steps=1)
    state, verdicts = DivergenceState(), []
    for step, loss in enumerate([4.0, 1.0, 5.0, 1.5, 5.0, 5.0]):
        state, reason = judge(config, DivergenceState.from_json(state.to_json()), step, loss)
        verdicts.append(reason is not None)
    assert verdicts == [False] * 5 + [True]
    assert judge(config, state, 9, math.inf)[1] == "loss is not finite"
    assert judge(DivergenceConfig(enabled=False), state, 9, math.nan)[1] is None
    with pytest.raises(ConfigError):
        DivergenceConfig(max_loss_ratio=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32", ("float32",) * 3),
        ("p=f32,c=bfloat16", ("float32", "bfloat16", "bfloat16")),
        ("params=float32,compute=bf16,output=f32", ("float32", "bfloat16", "float32")),
    ],
)
def test_precision_policies_parse_and_print(text, expected):
    policy = Policy.parse(text)
    assert (policy.params, policy.compute, policy.output) == expected
    assert Policy.parse(str(policy)) == policy


def test_casting_leaves_integers_alone():
    tree = cast_floating({"a": jnp.ones(2), "b": jnp.arange(2)}, "bfloat16")
    assert tree["a"].dtype == jnp.bfloat16 and tree["b"].dtype == jnp.int32


def test_the_watchdog_knows_which_deadline_passed():
    clock = ManualClock()
    config = ProgressWatchdogConfig(timedelta(seconds=10), timedelta(seconds=100), timedelta(seconds=50))
    dog = ProgressWatchdog(config, clock=clock)
    clock.advance(49)
    assert dog.stalled() is None
    clock.advance(2)
    assert "start" in dog.stalled()
    dog.step_started()
    dog.step_finished()
    clock.advance(99)
    assert dog.stalled() is None
    clock.advance(2)
    assert "nothing" in dog.stalled()
    dog.step_started()
    clock.advance(11)
    assert "step has run" in dog.stalled()


def test_no_step_is_too_long_within_the_grace_period():
    clock = ManualClock()
    config = ProgressWatchdogConfig(timedelta(seconds=10), startup_grace_period=timedelta(seconds=60))
    dog = ProgressWatchdog(config, clock=clock)
    dog.step_started()
    dog.step_finished()
    dog.step_started()
    clock.advance(60)
    assert dog.stalled() is None
    clock.advance(1)
    assert "step has run" in dog.stalled()


STALLED = """
import os, sys, threading, time
from datetime import timedelta
from levanter.callbacks.watchdog import ProgressWatchdog, ProgressWatchdogConfig
sys.stderr = open(sys.argv[1], "w")
second = timedelta(seconds=0.1)
ProgressWatchdog(ProgressWatchdogConfig(startup_timeout=second, diagnostic_timeout=second), poll_s=0.05).start()
time.sleep(100)
"""


def test_a_stalled_process_ends_even_when_nobody_reads_what_it_says(tmp_path, run_python):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    assert run_python("-c", STALLED, str(pipe)).returncode == 124
    os.close(reader)
    os.close(writer)


def a_call_to_be_seen():
    jax.block_until_ready(jnp.ones(2) + 1)


def test_a_finished_trace_is_handed_to_the_trackers_and_holds_what_its_options_ask_for(tmp_path):
    for enabled in (True, False):
        tracker = JsonFileTracker(str(tmp_path / str(enabled)))
        upload, options = ProfileUploadConfig(enabled=enabled), ProfileOptionsConfig(python_tracer_level=int(enabled))
        config = ProfilerConfig(enabled=True, start_step=1, num_steps=1, upload=upload, profile_options=options)
        profiler = Profiler(config, str(tmp_path / f"traced_{enabled}"), tracker)
        profiler.on_step(1)
        a_call_to_be_seen()
        profiler.on_step(2)
        (trace,) = (tmp_path / f"traced_{enabled}").rglob("profile/**/*.pb")
        assert (b"a_call_to_be_seen" in trace.read_bytes()) is enabled
        assert list((tmp_path / str(enabled)).rglob("profile/**/*.pb")) != [] or not enabled
        assert (tmp_path / str(enabled) / "artifacts").exists() is enabled


def test_hooks_get_force_only_if_they_take_it():
    assert Hook.of(lambda info, force: None, 2).takes_force and not Hook.of(lambda info: None, 2).takes_force
    with pytest.raises(ValueError, match="every=0"):
        Hook.of(lambda info: None, 0)


def test_config_values_that_cannot_be_are_refused(tmp_path):
    for bad in [{"train_batch_size": -1}, {"num_train_steps": 0}, {"per_device_parallelism": 0}]:
        with pytest.raises(ConfigError):
            trainer_config(tmp_path, **bad)
    assert trainer_config(tmp_path, checkpointer=CheckpointerConfig(keep=[KeepEvery(2)])).checkpoint_roots() == [
        "checkpoints/run"
    ]


class Line(eqx.Module):
    """The smallest model: its weights begin weakly typed, as everything made by ``jnp.ones`` does."""

    weight: hax.NamedArray


def test_the_step_is_traced_once_and_ahead_of_the_run(tmp_path):
    traced = []
    axis = Axis("feature", 4)

    def squares(model, batch, *, key=None):
        traced.append(threading.current_thread().name)
        return hax.mean(hax.square(model.weight * batch)).array

    examples = ListAsyncDataset([hax.named(np.full(4, i, np.float32), axis) for i in range(8)]).repeat()
    config = trainer_config(tmp_path, num_train_steps=4, model_averaging=EmaConfig(beta=0.5))
    with Trainer(config, AdamConfig().build(4), squares, progress=False) as trainer:
        loader = trainer.data_loader(examples)
        key = jax.random.PRNGKey(0)
        state = trainer.initial_state(key, model_init=lambda: Line(hax.ones(axis)), loader=loader)
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
        assert trainer.train(state, loader).state.step == 4
    assert traced == ["levanter-compile"]


def test_an_error_of_the_loss_function_is_raised_by_the_run(tmp_path):
    axis = Axis("feature", 4)

    def broken(model, batch, *, key=None):
        raise ValueError("no such loss")

    examples = ListAsyncDataset([hax.named(np.zeros(4, np.float32), axis)]).repeat()
    with Trainer(trainer_config(tmp_path), AdamConfig().build(4), broken, progress=False) as trainer:
        loader = trainer.data_loader(examples)
        state = trainer.initial_state(jax.random.PRNGKey(0), model_init=lambda: Line(hax.ones(axis)), loader=loader)
        with pytest.raises(ValueError, match="no such loss"):
            trainer.train(state, loader)
