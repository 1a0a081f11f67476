"""Builders of the data stages, from a source to a token cache."""

from __future__ import annotations

from typing import Any

from marin.datakit.artifacts import ConsolidatedData, DocumentCollection, DuplicateAttributes, NormalizedData
from marin.datakit.recipe import (
    CollectConfig,
    ConsolidateConfig,
    FuzzyDedupConfig,
    MinHashRule,
    NormalizeConfig,
    SplitRule,
    VerifyRule,
)
from marin.datakit.sources import Source
from marin.execution import ArtifactStep
from marin.execution.deferred import Deferred
from marin.tokenization.recipe import TokenizeConfig, TokenizedCache, TokenizerConfig, TrainedTokenizer


def documents(
    name: str, source: Source, *, version: str | None = None, **options: Any
) -> ArtifactStep[DocumentCollection]:
    """Collect a source as documents.

    Args:
        name: Step name.
        source: Where the text comes from.
        version: Step version; None takes the ambient one.
        **options: Fields of ``CollectConfig``: ``input_digest``, ``text_key``, ``on_bad_line``, ``text_unit``,
            ``num_shards``, ``max_files``.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=DocumentCollection,
        run=Deferred("marin.datakit.download.collect:collect"),
        build_config=lambda ctx: CollectConfig(
            output_path=ctx.output_path, scratch_path=ctx.scratch_path, source=source, **options
        ),
    )


def normalized(
    name: str, raw: ArtifactStep[DocumentCollection], *, num_shards: int = 8, version: str | None = None
) -> ArtifactStep[NormalizedData]:
    """Normalise documents and fold exact repeats.

    Args:
        name: Step name.
        raw: The documents.
        num_shards: Shards to write.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=NormalizedData,
        run=Deferred("marin.datakit.normalize:normalize"),
        build_config=lambda ctx: NormalizeConfig(
            output_path=ctx.output_path, documents_path=ctx.artifact_path(raw), num_shards=num_shards
        ),
        deps=(raw,),
    )


def near_duplicates(
    name: str,
    normal: ArtifactStep[NormalizedData],
    *,
    num_shards: int = 8,
    minhash: MinHashRule | None = None,
    verify: VerifyRule | None = None,
    version: str | None = None,
) -> ArtifactStep[DuplicateAttributes]:
    """Find and verify near duplicates.

    Args:
        name: Step name.
        normal: The normalised documents.
        num_shards: Shards of those documents.
        minhash: How candidates are proposed.
        verify: What counts as a duplicate.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=DuplicateAttributes,
        run=Deferred("marin.datakit.dedup.fuzzy:mark_fuzzy_duplicates"),
        build_config=lambda ctx: FuzzyDedupConfig(
            output_path=ctx.output_path,
            scratch_path=ctx.scratch_path,
            documents_path=ctx.artifact_path(normal),
            num_shards=num_shards,
            minhash=minhash or MinHashRule(),
            verify=verify or VerifyRule(),
        ),
        deps=(normal,),
    )


def consolidated(
    name: str,
    normal: ArtifactStep[NormalizedData],
    duplicates: ArtifactStep[DuplicateAttributes],
    *,
    split: SplitRule | None = None,
    version: str | None = None,
) -> ArtifactStep[ConsolidatedData]:
    """Drop duplicates and deal the rest to splits.

    Args:
        name: Step name.
        normal: The normalised documents.
        duplicates: Their duplicate attributes.
        split: How documents are dealt.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=ConsolidatedData,
        run=Deferred("marin.datakit.consolidate:consolidate"),
        build_config=lambda ctx: ConsolidateConfig(
            output_path=ctx.output_path,
            documents_path=ctx.artifact_path(normal),
            duplicates_path=ctx.artifact_path(duplicates),
            split=split or SplitRule(),
        ),
        deps=(normal, duplicates),
    )


def tokenizer(
    name: str, documents: ArtifactStep[ConsolidatedData], *, vocab_size: int, version: str | None = None
) -> ArtifactStep[TrainedTokenizer]:
    """Train a byte-level BPE tokeniser on the training split.

    Args:
        name: Step name.
        documents: The consolidated documents.
        vocab_size: Entries, special tokens included.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=TrainedTokenizer,
        run=Deferred("marin.tokenization.tokenizer:train_tokenizer"),
        build_config=lambda ctx: TokenizerConfig(
            output_path=ctx.output_path, documents_path=ctx.artifact_path(documents), vocab_size=vocab_size
        ),
        deps=(documents,),
    )


def tokenized(
    name: str,
    documents: ArtifactStep[ConsolidatedData],
    tokenizer: ArtifactStep[TrainedTokenizer],
    *,
    version: str | None = None,
) -> ArtifactStep[TokenizedCache]:
    """Build token caches of the training and validation splits.

    Args:
        name: Step name.
        documents: The consolidated documents.
        tokenizer: The tokeniser.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=TokenizedCache,
        run=Deferred("marin.tokenization.cache:tokenize"),
        build_config=lambda ctx: TokenizeConfig(
            output_path=ctx.output_path,
            documents_path=ctx.artifact_path(documents),
            tokenizer_path=ctx.artifact_path(tokenizer),
        ),
        deps=(documents, tokenizer),
    )
