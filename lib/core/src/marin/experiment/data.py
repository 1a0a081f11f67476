"""Builders of the data stages, from a source to a token cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marin.datakit.artifacts import (
    ConsolidatedData,
    ContaminationAttributes,
    DocumentCollection,
    DropSets,
    DuplicateAttributes,
    EvalIndex,
    NormalizedData,
)
from marin.datakit.errors import MissingSuiteError
from marin.datakit.recipe import (
    CleanConsolidateConfig,
    CollectConfig,
    ConsolidateConfig,
    DecontaminateConfig,
    DropRule,
    DropSetsConfig,
    EvalFiles,
    EvalIndexConfig,
    EvalSuite,
    FeatureRule,
    FuzzyDedupConfig,
    MinHashRule,
    NormalizeConfig,
    OverlapRule,
    SplitRule,
    VerifyRule,
)
from marin.datakit.sources import Source
from marin.execution import ArtifactStep, StepContext
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


def eval_index(
    name: str,
    suites: Mapping[str, EvalFiles | ArtifactStep[DocumentCollection] | ArtifactStep[NormalizedData]],
    *,
    required: Sequence[str] | None = None,
    features: FeatureRule | None = None,
    version: str | None = None,
) -> ArtifactStep[EvalIndex]:
    """Index the texts of evaluation suites.

    Args:
        name: Step name.
        suites: Where the documents of each suite (``name@version``) are: files, or a step that makes documents.
        required: Suites without which the step fails; None takes all.
        features: How texts are cut.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    Raises:
        MissingSuiteError: A required suite is not among the suites.
    """
    asked = tuple(suites if required is None else required)
    if missing := [suite for suite in asked if suite not in suites]:
        raise MissingSuiteError(missing, known=list(suites), detail="Say where their documents are.")

    def placed(ctx: StepContext, suite: str) -> EvalSuite:
        place = suites[suite]
        if isinstance(place, EvalFiles):
            return EvalSuite(suite, files=place)
        return EvalSuite(suite, documents_path=ctx.artifact_path(place))

    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=EvalIndex,
        run=Deferred("marin.datakit.decontaminate.eval_index:build_eval_index"),
        build_config=lambda ctx: EvalIndexConfig(
            output_path=ctx.output_path,
            scratch_path=ctx.scratch_path,
            suites=tuple(placed(ctx, suite) for suite in suites),
            required=asked,
            features=features or FeatureRule(),
        ),
        deps=tuple(place for place in suites.values() if isinstance(place, ArtifactStep)),
    )


def drop_sets(
    name: str,
    corpus: Sequence[ArtifactStep[NormalizedData]],
    index: ArtifactStep[EvalIndex],
    *,
    rule: DropRule | None = None,
    version: str | None = None,
) -> ArtifactStep[DropSets]:
    """Find the n-grams that are common language, over all sources of a corpus.

    Args:
        name: Step name.
        corpus: Normalised documents of all sources; with fewer than ``DropRule.min_sources`` sources no n-gram of a
            suite is ever dropped.
        index: The index of the suites.
        rule: What is common.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=DropSets,
        run=Deferred("marin.datakit.decontaminate.drop_sets:build_drop_sets"),
        build_config=lambda ctx: DropSetsConfig(
            output_path=ctx.output_path,
            scratch_path=ctx.scratch_path,
            documents_paths=tuple(ctx.artifact_path(part) for part in corpus),
            index_path=ctx.artifact_path(index),
            rule=rule or DropRule(),
        ),
        deps=(*corpus, index),
    )


def contamination(
    name: str,
    normal: ArtifactStep[NormalizedData],
    index: ArtifactStep[EvalIndex],
    *,
    suites: Sequence[str],
    drops: ArtifactStep[DropSets] | None = None,
    overlap: OverlapRule | None = None,
    version: str | None = None,
) -> ArtifactStep[ContaminationAttributes]:
    """Mark the documents that repeat evaluation suites; ``consolidated`` drops them.

    Args:
        name: Step name.
        normal: The normalised documents.
        index: The index of the suites.
        suites: Suites (``name@version``) that the marks vouch for, as a policy names them; the step fails when the
            index does not hold one.
        drops: N-grams that are no evidence.
        overlap: What counts as contaminated.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=ContaminationAttributes,
        run=Deferred("marin.datakit.decontaminate.mark:decontaminate"),
        build_config=lambda ctx: DecontaminateConfig(
            output_path=ctx.output_path,
            documents_path=ctx.artifact_path(normal),
            index_path=ctx.artifact_path(index),
            decontaminates=tuple(suites),
            drop_sets_path=ctx.artifact_path(drops) if drops is not None else "",
            overlap=overlap or OverlapRule(),
        ),
        deps=(normal, index) if drops is None else (normal, index, drops),
    )


def consolidated(
    name: str,
    normal: ArtifactStep[NormalizedData],
    duplicates: ArtifactStep[DuplicateAttributes],
    *,
    contamination: ArtifactStep[ContaminationAttributes] | None = None,
    split: SplitRule | None = None,
    version: str | None = None,
) -> ArtifactStep[ConsolidatedData]:
    """Drop duplicates and contaminated documents, and deal the rest to splits.

    Args:
        name: Step name.
        normal: The normalised documents.
        duplicates: Their duplicate attributes.
        contamination: Their contamination attributes; without them nothing is said about evaluation suites, and the
            recipe has no field for it.
        split: How documents are dealt.
        version: Step version; None takes the ambient one.
    Returns:
        The step.
    """

    def config(ctx: StepContext) -> ConsolidateConfig:
        common: dict[str, Any] = {
            "output_path": ctx.output_path,
            "documents_path": ctx.artifact_path(normal),
            "duplicates_path": ctx.artifact_path(duplicates),
            "split": split or SplitRule(),
        }
        if contamination is None:
            return ConsolidateConfig(**common)
        return CleanConsolidateConfig(**common, contamination_path=ctx.artifact_path(contamination))

    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=ConsolidatedData,
        run=Deferred("marin.datakit.consolidate:consolidate"),
        build_config=config,
        deps=(normal, duplicates) if contamination is None else (normal, duplicates, contamination),
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
