"""What the training commands share: the weights a run starts from, and what it answers to the shell."""

import dataclasses
import faulthandler
import logging
import sys
from collections.abc import Callable
from typing import Any

import jax

from levanter import config as levanter_config
from levanter.checkpoint import latest_checkpoint_path, load_checkpoint
from levanter.compat.hf_checkpoints import load_hf_checkpoint
from levanter.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    DivergedError,
    LevanterError,
    PreemptedError,
    TrackerError,
    TrainingError,
)
from levanter.preemption import EXIT_PREEMPTED
from levanter.trainer_state import TrainerState, trainable

EXIT_FAILED = 1
EXIT_DIVERGED = 3


def starting_weights(
    template: Any, *, hf: str | None, checkpoint: str | None, rows: int | None = None, config: Any = None, seed: int = 0
) -> Any:
    """The weights that a run does not draw itself, without adapters.

    Args:
        template: Arrays or shapes of the model, for ``checkpoint``.
        hf: Folder of a Hugging Face model, or None.
        checkpoint: Our checkpoint, or a folder of them, or None.
        rows: Rows of the embedding; exports pad theirs. None keeps the folder's.
        config: Shape to insist on in ``hf``; None reads it there.
        seed: Of the rows that are added.

    Returns:
        The model, or None where neither is given.
    """
    if hf is not None:
        _, model = load_hf_checkpoint(hf, config=config)
        fits = rows is None or rows == model.Vocab.size
        return model if fits else model.resize_vocab(rows, key=jax.random.PRNGKey(seed))
    if checkpoint is not None:
        return load_checkpoint(template, latest_checkpoint_path(checkpoint), subpath="model")
    return None


def with_model(state: TrainerState, model: Any) -> TrainerState:
    """A fresh state with other weights, laid out and typed as its own; the running average starts from them."""
    model = jax.tree.map(lambda new, old: jax.device_put(new.astype(old.dtype), old.sharding), model, state.model)
    averaging = state.model_averaging
    if averaging is not None:
        averaging = averaging.config.create(trainable(model))
    return dataclasses.replace(state, model=model, model_averaging=averaging)


def run_as_command(train: Callable[[Any], Any], config: Any) -> None:
    """Run ``train(config)``, print the fields of its result, and turn what it raises into an exit code.

    0 done, 1 the run failed (storage, data), 2 bad configuration, 3 diverged, 75 preempted after saving.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    faulthandler.enable()  # a crash, or a supervisor's SIGABRT, leaves the stacks of all threads on stderr
    try:
        result = train(config)
    except DivergedError as error:
        levanter_config.fail_with_hint(error, EXIT_DIVERGED)
    except PreemptedError as error:
        levanter_config.fail_with_hint(error, EXIT_PREEMPTED)
    except (CheckpointNotFoundError, CheckpointMismatchError) as error:
        levanter_config.fail_with_hint(error, levanter_config.EXIT_BAD_CONFIG)
    except (TrainingError, CheckpointError, TrackerError) as error:
        levanter_config.fail_with_hint(error, EXIT_FAILED)
    except LevanterError as error:
        levanter_config.fail_with_hint(error, levanter_config.EXIT_BAD_CONFIG)
    for name, value in dataclasses.asdict(result).items():
        print(f"{name}: {value}", file=sys.stdout)
