"""What sampling is told and what it leaves behind. Plain data, no jax."""

from __future__ import annotations

from dataclasses import dataclass

from marin.execution import Artifact


@dataclass(frozen=True)
class SampleConfig:
    """What to sample.

    Attributes:
        output_path: Folder that receives ``samples.json``.
        model_path: Folder of a model in Hugging Face layout.
        prompts: Beginnings to continue.
        max_new_tokens: Tokens to add to each.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Sample among the likeliest so many; None among all.
        seed: Root of the draws.
    """

    output_path: str
    model_path: str
    prompts: tuple[str, ...]
    max_new_tokens: int = 96
    temperature: float = 0.8
    top_k: int | None = 40
    seed: int = 0


class SampleSet(Artifact):
    """Continuations of prompts in ``samples.json``: a list of ``{"prompt": ..., "text": ...}``."""

    num_samples: int = 0

    @property
    def samples_file(self) -> str:
        """The samples."""
        return self.file("samples.json")
