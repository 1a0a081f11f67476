"""Skip-step and update clipping in a whole run: one bad batch, its numbers in the metrics, the weights afterwards."""

import json
import math

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.errors import DivergedError
from levanter.optim.config import AdamConfig, ClipUpdateNormConfig, SkipStepConfig
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig

Feature = Axis("feature", 4)
BAD, STEPS = 12, 16
SKIP = {"skip_bad_steps": SkipStepConfig(rolling_interval_length=8, sigma_factor=6.0)}
JUMPY = {"max_grad_norm": None, "beta1": 0.0, "beta2": 0.999}
"""Adam alone holds a single outlier back; without momentum and with a long memory it does so less."""
CLIP = {**JUMPY, "clip_update_norm": ClipUpdateNormConfig(rolling_interval_length=8, sigma_factor=3.0)}


class Line(eqx.Module):
    weight: hax.NamedArray


def squared_error(model, batch, *, key=None):
    return hax.mean(hax.square(model.weight * batch - 1.0)).array


def batches(bad):
    """One example a step, all alike but one."""
    rng = np.random.default_rng(0)
    rows = [rng.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(STEPS)]
    rows[BAD] = np.full(4, bad, np.float32)
    return ListAsyncDataset([hax.named(row, Feature) for row in rows])


def run(folder, guard, bad, *, steps=STEPS, **changes):
    """Train; the rows of the metrics file and the weights after every step."""
    config = TrainerConfig(
        **{"train_batch_size": 1, "num_train_steps": steps, "log_dir": str(folder), "watch": WatchConfig(interval=0),
           "checkpointer": None, **changes}
    )  # fmt: skip
    weights = []
    optimizer = AdamConfig(learning_rate=0.05, warmup=0, weight_decay=0, lr_schedule="constant", **guard).build(STEPS)
    with Trainer(config, optimizer, squared_error, progress=False) as trainer:
        trainer.add_hook(lambda info: weights.append(np.asarray(info.model.weight.array).copy()))
        loader = trainer.data_loader(batches(bad))
        state = trainer.initial_state(
            jax.random.PRNGKey(0), model_init=lambda: Line(hax.zeros(Feature, dtype=jnp.float32)), loader=loader
        )
        trainer.train(state, loader)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return rows, weights


def steps_with(rows, name):
    return [row["step"] for row in rows if row[name] == 1.0]


@pytest.mark.parametrize("bad", [1e4, math.nan])
def test_a_bad_batch_is_skipped_once_and_training_goes_on(tmp_path, bad):
    rows, weights = run(tmp_path, SKIP, bad, crash_on_nan=False)
    assert steps_with(rows, "optim/skipped_step") == [BAD]
    np.testing.assert_array_equal(weights[BAD], weights[BAD - 1])
    assert np.all(weights[BAD + 1] != weights[BAD])
    assert rows[BAD]["train/loss"] > 1e6 or math.isnan(rows[BAD]["train/loss"])
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] / 2
    assert rows[BAD + 1]["train/loss"] < 1.5 * rows[BAD - 1]["train/loss"]


def test_a_run_killed_before_the_bad_batch_skips_it_all_the_same(tmp_path):
    whole, weights = run(tmp_path / "whole", SKIP, 1e4)
    saves = CheckpointerConfig(base_path=str(tmp_path / "checkpoints"), keep=None)
    run(tmp_path / "parts", SKIP, 1e4, steps=BAD, checkpointer=saves)
    rows, resumed = run(tmp_path / "parts", SKIP, 1e4, checkpointer=saves)
    assert steps_with(rows, "optim/skipped_step") == [BAD]
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in whole]
    np.testing.assert_array_equal(resumed[-1], weights[-1])


def test_a_loss_that_is_not_a_number_ends_the_run_unless_that_is_allowed(tmp_path):
    with pytest.raises(DivergedError, match="not finite"):
        run(tmp_path, SKIP, math.nan)


def test_a_jump_of_the_update_is_clipped_to_its_history(tmp_path):
    rows, weights = run(tmp_path, CLIP, 1e4)
    name = "optim/clip_update"
    assert BAD in steps_with(rows, f"{name}/did_clip")
    assert rows[BAD][f"{name}/pre_clip_norm"] > rows[BAD][f"{name}/update_norm_threshold"]
    moved = np.linalg.norm(weights[BAD] - weights[BAD - 1])
    assert moved == pytest.approx(rows[BAD][f"{name}/update_norm_threshold"], rel=1e-3)
    free, unclipped = run(tmp_path / "free", JUMPY, 1e4)
    assert f"{name}/did_clip" not in free[BAD]
    assert np.linalg.norm(unclipped[BAD] - unclipped[BAD - 1]) > 1.5 * moved
