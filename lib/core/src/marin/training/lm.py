"""Train a language model as a step: resumable while it runs, reproducible once it is done.

The problem: a checkpoint folder holds random ids and times, so two equal runs never leave equal bytes; and a killed run
must go on where it was. The idea: everything that a running trainer writes goes to the step's scratch folder, which
outlives a killed attempt; when training ends, the last checkpoint and the curves move into the output, and the digest
of the parameters stands for the checkpoint's content. A run that diverges leaves its curve as evidence.
"""

from __future__ import annotations

import os
import shutil

from levanter.main import train_lm as levanter_train_lm
from rigging.filesystem.atomic import write_text_atomic

from marin.execution import step_attempt
from marin.training.artifacts import LevanterCheckpoint
from marin.training.curves import VALIDATION_LOSS, last_value
from marin.training.levanter_config import train_lm_config
from marin.training.recipe import TrainLmConfig


def train_lm(config: TrainLmConfig) -> LevanterCheckpoint:
    """Train, from the newest checkpoint in the scratch folder or from the start.

    Args:
        config: Recipe, inputs and outputs.
    Returns:
        The artifact: ``checkpoints/step-N``, ``metrics.jsonl`` and ``logs/``.
    Raises:
        levanter.errors.DivergedError: The loss went wrong; the curve is kept with the failed attempt.
    """
    attempt = step_attempt()
    try:
        result = levanter_train_lm.train(train_lm_config(config), cancel=attempt.cancel if attempt else None)
    finally:
        _keep_curves(config)
    assert result.checkpoint_path is not None
    target = f"{config.output_path}/checkpoints/step-{result.step}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copytree(result.checkpoint_path, target)
    write_text_atomic(f"{config.output_path}/parameters.sha256", f"{result.parameter_digest}\n")
    metrics = f"{config.output_path}/metrics.jsonl"
    return LevanterCheckpoint(
        step=result.step,
        final_loss=result.final_loss,
        validation_loss=last_value(metrics, VALIDATION_LOSS),
        num_tokens=result.tokens,
        parameter_digest=result.parameter_digest,
    )


def _keep_curves(config: TrainLmConfig) -> None:
    """Copy what the tracker wrote: values that equal runs reproduce, and timings apart from them."""
    tracker = f"{config.scratch_path}/tracker"
    if os.path.exists(f"{tracker}/metrics.jsonl"):
        shutil.copyfile(f"{tracker}/metrics.jsonl", f"{config.output_path}/metrics.jsonl")
    if os.path.isdir(f"{tracker}/logs"):
        shutil.copytree(f"{tracker}/logs", f"{config.output_path}/logs", dirs_exist_ok=True)
