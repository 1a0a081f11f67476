"""The ``data:`` section of a training configuration: which text, in which shares, cached where.

::

    data:
      tokenizer: ./tokenizer
      cache_dir: ./cache
      components:
        code:
          source: {type: url, train_urls: ["code/*.jsonl.gz"], validation_urls: ["code-val.jsonl"]}
        books:
          source: {type: url, train_urls: ["books/*.txt"]}
      train_weights: {code: 0.7, books: 0.3}

Caches are built on first use and opened afterwards; one made with other settings is an error. The training stream is a
function of this section, the sequence length and a key: split, then shuffle, then budget, then mix.
"""

import abc
import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any

import draccus
import haliax as hax
import jax
import numpy as np

from levanter.data._keys import fold_in_name, split
from levanter.data._shard_build import TokenizeSettings
from levanter.data.dataset import AsyncDataset, BlockShuffleConfig
from levanter.data.errors import DataConfigError
from levanter.data.mixture import MixtureDataset, StopStrategy, rescale_mixture_schedule_for_batch_schedule
from levanter.data.packing import GreedyPrepackedDataset, PackedTokenDataset
from levanter.data.text.cache import load_or_build_cache
from levanter.data.text.datasets import CausalLmDataset, TokenSeqDataset
from levanter.data.text.examples import LmExample
from levanter.data.text.formats import LmDatasetFormatBase, Pack, TextLmDatasetFormat, max_segments
from levanter.schedule import BatchSchedule
from levanter.store._arrays import join_path
from levanter.store.cache import TreeCache
from levanter.store.errors import CacheNotFinishedError
from levanter.tokenizers.hf import load_tokenizer
from levanter.tokenizers.passthrough import PassthroughTokenizer
from levanter.tokenizers.protocol import MarinTokenizer

logger = logging.getLogger(__name__)

TRAIN = "train"
VALIDATION = "validation"
DEFAULT_LM_DATA_SHUFFLE = BlockShuffleConfig(io_block_size=256, window_blocks=512)
HOLDOUT_SEED = 0
"""Training and evaluation build the holdout separately, so its seed is fixed."""


@dataclasses.dataclass(frozen=True)
class LmDatasetSourceConfigBase(draccus.ChoiceRegistry):
    """Base of sources; chosen by ``type:``, ``url`` when it is left out."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        """``url``."""
        return "url"

    @abc.abstractmethod
    def urls_of(self, split_name: str) -> list[str]:
        """Files of a split; empty when the source has no such split."""


@LmDatasetSourceConfigBase.register_subclass("url")
@dataclasses.dataclass(frozen=True)
class UrlDatasetSourceConfig(LmDatasetSourceConfigBase):
    """Files by path or URL: jsonl, json, parquet or txt, compressed or not; globs and folders are expanded.

    Attributes:
        train_urls: Files to train on.
        validation_urls: Files to evaluate on.
    """

    train_urls: list[str] = dataclasses.field(default_factory=list)
    validation_urls: list[str] = dataclasses.field(default_factory=list)

    def urls_of(self, split_name: str) -> list[str]:
        """Files of a split."""
        return {TRAIN: self.train_urls, VALIDATION: self.validation_urls}.get(split_name, [])


@dataclasses.dataclass(frozen=True)
class DatasetComponentBase(draccus.ChoiceRegistry):
    """Base of components; chosen by ``type:``, ``cached`` when it is left out."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        """``cached``."""
        return "cached"


@DatasetComponentBase.register_subclass("cached")
@dataclasses.dataclass(frozen=True)
class DatasetComponent(DatasetComponentBase):
    """Text that is tokenised into a cache.

    Attributes:
        source: Where the text is; not needed when the cache is there.
        cache_dir: Where its caches are; ``<cache_dir of the section>/<name>`` when ``None``.
        format: What a record means.
        pack: Overrides the ``pack`` of the format.
        tags: Labels under which evaluation reports it, besides its name.
    """

    source: LmDatasetSourceConfigBase | None = None
    cache_dir: str | None = None
    format: LmDatasetFormatBase = dataclasses.field(default_factory=TextLmDatasetFormat)
    pack: Pack = None
    tags: list[str] | None = None


@DatasetComponentBase.register_subclass("direct")
@dataclasses.dataclass(frozen=True)
class DirectDatasetComponent(DatasetComponentBase):
    """Examples that are already datasets, for code that makes them itself.

    Attributes:
        datasets: Split name to dataset of :class:`LmExample`.
        tags: Labels under which evaluation reports it, besides its name.
    """

    datasets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tags: list[str] | None = None


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """How caches are built; nothing here changes a token.

    Attributes:
        num_shards: Shards of a cache; one a file when ``None``.
    """

    num_shards: int | None = None


@dataclasses.dataclass(frozen=True)
class LmDataConfig:
    """Text for language models. See the module for an example.

    Attributes:
        tokenizer: Folder in Hugging Face layout, a ``tokenizer.json``, or ``passthrough``.
        vocab_size: Only for ``passthrough``: ids must be below it.
        cache_dir: Folder of the caches of components that name none.
        cache_options: How caches are built.
        enforce_eos: Put the EOS id after every document.
        enforce_bos: Put the BOS id before every document.
        auto_build_caches: Build caches that are missing; otherwise that is an error.
        on_bad_record: ``raise`` at a bad record, or ``skip`` and count it.
        shuffle: Block shuffle with these sizes; ``true`` for one global permutation, ``false`` for source order.
        permutation_type: Kind of permutation of ``shuffle: true``.
        block_cross_document_attention: Whether documents of a window are kept apart.
        components: Datasets by name. Their order is part of the stream.
        train_weights: Share of each component in training, or ``[[training step, {name: weight}], ...]``; 1 each
            when ``None``. Weight 0: evaluation only.
        stop_strategy: ``restart``, ``first_exhausted`` or ``all_exhausted``.
        mixture_block_size: Samples in which the shares are exact.
        target_budget: With ``experiment_budget``: tokens of the run to imitate; components are shortened so that a
            short run repeats data as the long one would.
        experiment_budget: Tokens of this run.
        max_train_batches: Component to most batches (of the initial size) used for training.
        num_validation_sequences: Component to sequences held out of its training data for validation.
    """

    tokenizer: str = "gpt2"
    vocab_size: int | None = None
    cache_dir: str = "cache/"
    cache_options: CacheOptions = CacheOptions()
    enforce_eos: bool = True
    enforce_bos: bool = False
    auto_build_caches: bool = True
    on_bad_record: str = "raise"
    shuffle: bool | BlockShuffleConfig = DEFAULT_LM_DATA_SHUFFLE
    permutation_type: str = "feistel"
    block_cross_document_attention: bool = True
    components: dict[str, DatasetComponentBase] = dataclasses.field(default_factory=dict)
    train_weights: dict[str, float] | list[tuple[int, dict[str, float]]] | None = None
    stop_strategy: StopStrategy = StopStrategy.RESTART
    mixture_block_size: int = 2048
    target_budget: int | None = None
    experiment_budget: int | None = None
    max_train_batches: dict[str, int] | None = None
    num_validation_sequences: dict[str, int] | None = None

    def __post_init__(self) -> None:
        for key, names in self._named():
            unknown = sorted(set(names) - set(self.components))
            if unknown:
                raise DataConfigError(key, f"unknown components {unknown}", f"some of {sorted(self.components)}")
        if (self.target_budget is None) != (self.experiment_budget is None):
            raise DataConfigError("target_budget", "only one of the two budgets is given", "both, or neither")
        if self.target_budget is not None and self.experiment_budget is not None:
            if not 0 < self.experiment_budget <= self.target_budget:
                raise DataConfigError(
                    "experiment_budget", f"{self.experiment_budget} of {self.target_budget}", "0 < experiment <= target"
                )
            if self.max_train_batches or self.num_validation_sequences:
                raise DataConfigError(
                    "target_budget", "combined with max_train_batches or num_validation_sequences", "one of them"
                )
        if self.on_bad_record not in ("raise", "skip"):
            raise DataConfigError("on_bad_record", f"value {self.on_bad_record!r}", "'raise' or 'skip'")

    def _named(self) -> list[tuple[str, list[str]]]:
        stages = self.train_weights if isinstance(self.train_weights, list) else [(0, self.train_weights or {})]
        return [
            ("train_weights", [name for _, weights in stages for name in weights]),
            ("max_train_batches", list(self.max_train_batches or {})),
            ("num_validation_sequences", list(self.num_validation_sequences or {})),
        ]

    @functools.cached_property
    def the_tokenizer(self) -> MarinTokenizer:
        """The tokenizer, loaded once.

        Raises:
            TokenizerNotFoundError: Nothing is at the path.
            DataConfigError: ``passthrough`` without ``vocab_size``.
        """
        if self.tokenizer == "passthrough":
            if self.vocab_size is None:
                raise DataConfigError("vocab_size", "missing for tokenizer 'passthrough'", "the size the ids have")
            return PassthroughTokenizer(self.vocab_size)
        return load_tokenizer(self.tokenizer)

    def train_set(
        self, Pos: hax.Axis, batch_schedule: BatchSchedule | int, *, key: jax.Array
    ) -> MixtureDataset[LmExample]:
        """The training stream.

        Args:
            Pos: Position axis: its size is the sequence length.
            batch_schedule: Batch size by step; places the stages of ``train_weights``.
            key: Seed of shuffling and mixing.
        Raises:
            DataConfigError: A component has neither a cache nor files to build one from.
        """
        schedule = batch_schedule if isinstance(batch_schedule, BatchSchedule) else BatchSchedule(batch_schedule)
        mix_key, shuffle_key = split(key)
        datasets = self.train_sets(Pos, initial_batch_size=schedule.batch_size_at_step(0), key=shuffle_key)
        weights: Any = self._weights()
        if isinstance(weights, list):
            weights = rescale_mixture_schedule_for_batch_schedule(weights, schedule)
        return MixtureDataset(datasets, weights, self.mixture_block_size, key=mix_key, stop_strategy=self.stop_strategy)

    def train_sets(
        self, Pos: hax.Axis, *, initial_batch_size: int = 1, key: jax.Array
    ) -> dict[str, AsyncDataset[LmExample]]:
        """Training examples of each component with a weight: split, shuffled, shortened."""
        return {
            name: self._train_examples(name, Pos, initial_batch_size, fold_in_name(key, name))
            for name in self._training_names()
        }

    def validation_sets(self, Pos: hax.Axis) -> dict[str, AsyncDataset[LmExample]]:
        """Validation examples by component: its validation files, and sequences held out of its training data.

        Components that have neither are left out.
        """
        found: dict[str, AsyncDataset[LmExample]] = {}
        for name, component in self.components.items():
            if isinstance(component, DirectDatasetComponent):
                if VALIDATION in component.datasets:
                    found[name] = component.datasets[VALIDATION]
                continue
            held_out = (self.num_validation_sequences or {}).get(name, 0)
            if held_out:
                found[name] = self._split(self._examples(name, TRAIN, Pos), held_out)[1]
                continue
            examples = self._examples_or_none(name, VALIDATION, Pos)
            if examples is None:
                logger.info("component %r has no validation data", name)
            else:
                found[name] = examples
        return found

    def tagged_eval_sets(self, Pos: hax.Axis) -> list[tuple[AsyncDataset[LmExample], list[str]]]:
        """Validation examples with the labels under which to report them: own tags, then the name."""
        tags = {name: list(getattr(component, "tags", None) or []) for name, component in self.components.items()}
        return [(dataset, [*tags[name], name]) for name, dataset in self.validation_sets(Pos).items()]

    def build_caches(self, split_name: str) -> dict[str, TreeCache]:
        """Open the caches of a split, building those that are missing; components without that split are left out."""
        caches = {name: self._cache_or_none(name, split_name) for name in self._cached_names()}
        return {name: cache for name, cache in caches.items() if cache is not None}

    def cache_path(self, name: str, split_name: str) -> str:
        """Folder of the cache of a component and split."""
        component = self._cached(name)
        return join_path(component.cache_dir or join_path(self.cache_dir, name), split_name)

    def _cached_names(self) -> list[str]:
        return [name for name, component in self.components.items() if isinstance(component, DatasetComponent)]

    def _cached(self, name: str) -> DatasetComponent:
        component = self.components[name]
        if not isinstance(component, DatasetComponent):
            raise DataConfigError(f"components.{name}", f"is a {type(component).__name__}", "a cached component")
        return component

    def _weights(self) -> dict[str, float] | list[tuple[int, dict[str, float]]]:
        if self.train_weights is None:
            return {name: 1.0 for name in self.components}
        return self.train_weights

    def _training_names(self) -> list[str]:
        weights = self._weights()
        stages = weights if isinstance(weights, list) else [(0, weights)]
        used = {name for _, stage in stages for name, weight in stage.items() if weight > 0}
        return [name for name in self.components if name in used]

    def _train_examples(self, name: str, Pos: hax.Axis, batch_size: int, key: jax.Array) -> AsyncDataset[LmExample]:
        component = self.components[name]
        if isinstance(component, DirectDatasetComponent):
            dataset: AsyncDataset[LmExample] = component.datasets[TRAIN]
        else:
            dataset = self._examples(name, TRAIN, Pos)
        held_out = (self.num_validation_sequences or {}).get(name, 0)
        if held_out:
            dataset = self._split(dataset, held_out)[0]
        if isinstance(self.shuffle, BlockShuffleConfig):
            sizes = self.shuffle
            dataset = dataset.block_shuffle(
                io_block_size=sizes.io_block_size, window_blocks=sizes.window_blocks, key=key, perm_type=sizes.perm_type
            )
        elif self.shuffle:
            dataset = dataset.shuffle(key, perm_type=self.permutation_type)
        return self._shortened(name, dataset, batch_size)

    def _shortened(self, name: str, dataset: AsyncDataset[LmExample], batch_size: int) -> AsyncDataset[LmExample]:
        length = len(dataset.as_sync_dataset())
        if self.target_budget is not None and self.experiment_budget is not None:
            return dataset.take(int(length * (self.experiment_budget / self.target_budget)))
        most = (self.max_train_batches or {}).get(name)
        if most is None:
            return dataset
        if most * batch_size > length:
            raise DataConfigError(
                f"max_train_batches.{name}",
                f"{most} batches of {batch_size} exceed {length} sequences",
                "fewer batches",
            )
        return dataset.take(most * batch_size)

    def _split(
        self, dataset: AsyncDataset[LmExample], held_out: int
    ) -> tuple[AsyncDataset[LmExample], AsyncDataset[LmExample]]:
        return dataset.random_holdout_split(held_out, key=jax.random.PRNGKey(HOLDOUT_SEED))

    def _examples(self, name: str, split_name: str, Pos: hax.Axis) -> AsyncDataset[LmExample]:
        examples = self._examples_or_none(name, split_name, Pos)
        if examples is None:
            raise DataConfigError(
                f"components.{name}",
                f"no {split_name} files, and no cache at {self.cache_path(name, split_name)!r}",
                f"a source with {split_name}_urls, a finished cache, or weight 0",
            )
        return examples

    def _examples_or_none(self, name: str, split_name: str, Pos: hax.Axis) -> AsyncDataset[LmExample] | None:
        cache = self._cache_or_none(name, split_name)
        if cache is None:
            return None
        component = self._cached(name)
        pack = component.pack if component.pack is not None else getattr(component.format, "pack", None)
        segments = max_segments(pack)
        if segments is not None:
            packs = GreedyPrepackedDataset(cache, Pos.size, max_segments_per_example=segments, slice_strategy="left")
            return PackedTokenDataset(packs, Pos)
        return CausalLmDataset(
            TokenSeqDataset(cache, Pos.size),
            Pos,
            eos_id=self.the_tokenizer.eos_token_id,
            block_cross_document_attention=self.block_cross_document_attention,
        )

    def _cache_or_none(self, name: str, split_name: str) -> TreeCache | None:
        component = self._cached(name)
        urls = [] if component.source is None else component.source.urls_of(split_name)
        try:
            return load_or_build_cache(
                urls,
                self.cache_path(name, split_name),
                self._settings(component),
                build=self.auto_build_caches,
                num_shards=self.cache_options.num_shards,
            )
        except CacheNotFinishedError:
            if urls:
                raise
            return None

    def _settings(self, component: DatasetComponent) -> TokenizeSettings:
        text_key = component.format.text_key if isinstance(component.format, TextLmDatasetFormat) else "text"
        return TokenizeSettings(
            self.tokenizer,
            text_key=text_key,
            enforce_eos=self.enforce_eos,
            enforce_bos=self.enforce_bos,
            on_bad_record="skip" if self.on_bad_record == "skip" else "raise",
            passthrough_vocab_size=self.vocab_size,
        )


def count_corpus_sizes(config: LmDataConfig, *, prefix: str = "data/stats/", seq_len: int = 4096) -> dict[str, float]:
    """Tokens, documents and sequences of every training component, as metrics.

    Args:
        config: A data section; missing caches are built.
        prefix: Put before every metric name.
        seq_len: Tokens of a sequence.
    Returns:
        Metric name to value; ``total_tokens``, ``total_docs`` and ``total_seqs`` by component.
    """
    stats: dict[str, float] = {}
    for name, cache in config.build_caches(TRAIN).items():
        tokens = cache.flat_field_length("input_ids")
        stats[f"{prefix}train/{name}/total_tokens"] = tokens
        stats[f"{prefix}train/{name}/total_docs"] = len(cache)
        stats[f"{prefix}train/{name}/total_seqs"] = int(np.floor_divide(tokens, seq_len))
    return stats
