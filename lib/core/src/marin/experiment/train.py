"""Builders of the training stages: a checkpoint, and its export."""

from __future__ import annotations

from rigging.resources import ResourceConfig

from marin.execution import ArtifactStep, remote
from marin.execution.deferred import Deferred
from marin.tokenization.recipe import TokenizedCache, TrainedTokenizer
from marin.training.artifacts import HfModel, LevanterCheckpoint
from marin.training.recipe import ExportConfig, LmRecipe, ModelShape, TrainLmConfig


def train_lm(
    name: str,
    tokens: ArtifactStep[TokenizedCache],
    tokenizer: ArtifactStep[TrainedTokenizer],
    recipe: LmRecipe,
    *,
    resources: ResourceConfig | None = None,
    version: str | None = None,
) -> ArtifactStep[LevanterCheckpoint]:
    """Train a language model in a process of its own.

    Args:
        name: Step name.
        tokens: Token caches.
        tokenizer: The tokeniser that made them.
        recipe: What defines the run.
        resources: What the job asks for; not part of the identity.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=LevanterCheckpoint,
        run=remote(Deferred("marin.training.lm:train_lm"), resources=resources or ResourceConfig(cpu=2, ram="4g")),
        build_config=lambda ctx: TrainLmConfig(
            output_path=ctx.output_path,
            scratch_path=ctx.scratch_path,
            cache_path=ctx.artifact_path(tokens),
            tokenizer_path=ctx.artifact_path(tokenizer),
            recipe=recipe,
        ),
        deps=(tokens, tokenizer),
    )


def exported(
    name: str,
    checkpoint: ArtifactStep[LevanterCheckpoint],
    tokenizer: ArtifactStep[TrainedTokenizer],
    model: ModelShape,
    *,
    version: str | None = None,
) -> ArtifactStep[HfModel]:
    """Export a checkpoint in Hugging Face layout.

    Args:
        name: Step name.
        checkpoint: The trained model.
        tokenizer: Its tokeniser.
        model: Its shape.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=HfModel,
        run=Deferred("marin.training.export:export"),
        build_config=lambda ctx: ExportConfig(
            output_path=ctx.output_path,
            checkpoint_path=ctx.artifact_path(checkpoint),
            tokenizer_path=ctx.artifact_path(tokenizer),
            model=model,
        ),
        deps=(checkpoint, tokenizer),
    )
