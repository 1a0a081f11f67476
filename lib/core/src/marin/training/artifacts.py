"""What training leaves behind. Plain data, no jax."""

from __future__ import annotations

from typing import ClassVar

from marin.execution import Artifact


class LevanterCheckpoint(Artifact):
    """The last checkpoint of a run and its curve.

    Checkpoint files carry random ids and times, so they are volatile; ``parameter_digest`` stands for their content.

    Attributes:
        step: Optimiser steps taken.
        final_loss: Training loss of the last step, nats per token.
        validation_loss: Loss on the validation split after the last step, nats per token.
        num_tokens: Tokens trained on.
        parameter_digest: SHA-256 over the parameters.
    """

    step: int = 0
    final_loss: float = 0.0
    validation_loss: float | None = None
    num_tokens: int = 0
    parameter_digest: str = ""
    volatile: ClassVar[tuple[str, ...]] = ("logs/**", "checkpoints/**")
    purpose: ClassVar[str] = "train"

    @property
    def checkpoint_dir(self) -> str:
        """Folder of the run's checkpoints."""
        return self.file("checkpoints")


class HfModel(Artifact):
    """A model in Hugging Face layout under ``model/``: config.json, safetensors, tokenizer.json.

    Attributes:
        num_parameters: Parameters of the model.
    """

    num_parameters: int = 0

    @property
    def model_dir(self) -> str:
        """Folder that other tools open."""
        return self.file("model")
