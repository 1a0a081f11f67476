"""Builders of what is done with an exported model: measure it, and read what it writes."""

from __future__ import annotations

from collections.abc import Sequence

from rigging.resources import ResourceConfig

from marin.datakit.artifacts import ConsolidatedData
from marin.evaluation.results import BitsPerByteConfig, BitsPerByteResult
from marin.execution import ArtifactStep, remote
from marin.execution.deferred import Deferred
from marin.inference.results import SampleConfig, SampleSet
from marin.training.artifacts import HfModel


def bits_per_byte(
    name: str,
    model: ArtifactStep[HfModel],
    documents: ArtifactStep[ConsolidatedData],
    *,
    seq_len: int = 256,
    max_bytes: int | None = None,
    version: str | None = None,
) -> ArtifactStep[BitsPerByteResult]:
    """Measure bits per byte on the test split.

    Args:
        name: Step name.
        model: The exported model.
        documents: The consolidated documents.
        seq_len: Positions in one window.
        max_bytes: Measure about this many bytes; None measures all.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=BitsPerByteResult,
        run=remote(Deferred("marin.evaluation.bits_per_byte:measure"), resources=ResourceConfig(cpu=2, ram="4g")),
        build_config=lambda ctx: BitsPerByteConfig(
            output_path=ctx.output_path,
            model_path=f"{ctx.artifact_path(model)}/model",
            documents_path=ctx.artifact_path(documents),
            seq_len=seq_len,
            max_bytes=max_bytes,
        ),
        deps=(model, documents),
    )


def samples(
    name: str,
    model: ArtifactStep[HfModel],
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 96,
    temperature: float = 0.8,
    seed: int = 0,
    version: str | None = None,
) -> ArtifactStep[SampleSet]:
    """Sample continuations of prompts.

    Args:
        name: Step name.
        model: The exported model.
        prompts: Beginnings to continue.
        max_new_tokens: Tokens to add to each.
        temperature: Divides the logits.
        seed: Root of the draws.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=SampleSet,
        run=remote(Deferred("marin.inference.sample:sample"), resources=ResourceConfig(cpu=2, ram="4g")),
        build_config=lambda ctx: SampleConfig(
            output_path=ctx.output_path,
            model_path=f"{ctx.artifact_path(model)}/model",
            prompts=tuple(prompts),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
        ),
        deps=(model,),
    )
