"""Train on preferences: direct preference optimisation of a language model against a frozen reference.

    python -m levanter.main.train_dpo --config_path config.yaml --beta 0.1

The reference's log-probabilities are computed once before the first step; training holds one model. Exit codes are
those of :mod:`levanter.main.train_lm`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
from draccus import ChoiceRegistry
from haliax import Axis

from levanter import config as levanter_config
from levanter._trainer.base import FROM_SEED, BaseModel
from levanter.checkpoint import latest_checkpoint_path, load_checkpoint
from levanter.compat.hf_checkpoints import load_hf_checkpoint, save_hf_checkpoint
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.config import VALIDATION
from levanter.dpo import DpoExample, attach_reference, check_beta, dpo_loss
from levanter.errors import ConfigError
from levanter.lora import LoraConfig, is_lora_model, loraize, merge_lora_modules, save_peft_pretrained
from levanter.main.start import run_as_command, starting_weights, with_model
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmConfig
from levanter.optim.config import AdamConfig, OptimizerConfig
from levanter.preference import PreferenceLmDataConfig
from levanter.throughput import WorkPerExample
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig


@dataclass(frozen=True)
class ReferenceConfig(ChoiceRegistry):
    """Which model the policy is held to."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        """``adapter_base``."""
        return "adapter_base"


@ReferenceConfig.register_subclass("adapter_base")
@dataclass(frozen=True)
class AdapterBaseReference(ReferenceConfig):
    """The policy as it starts: the base model under an adapter, or the weights training begins with."""


@ReferenceConfig.register_subclass("separate")
@dataclass(frozen=True)
class SeparateReference(ReferenceConfig):
    """A model of its own.

    Attributes:
        model_path: Folder of a Hugging Face model, or of our checkpoints.
        is_hf: Which of the two.
    """

    model_path: str = ""
    is_hf: bool = True

    def __post_init__(self) -> None:
        if not self.model_path:
            raise ConfigError("empty; expected the folder of the reference model.", key="reference.model_path")


@dataclass(frozen=True)
class TrainDpoConfig:
    """Everything a preference run is made of.

    Attributes:
        data: Answer pairs.
        trainer: How to train.
        model: The policy's shape; replaced by the folder's under ``initialize_from_hf``.
        optimizer: How to update.
        reference: What the policy is held to.
        adapter: Train a LoRA adapter instead of all weights; None trains all.
        beta: Strength of the pull towards the reference.
        train_seq_len: Tokens of a sequence; None means the model's longest.
        validation_split_fraction: Share of the pairs, from the end of the files, that is evaluated and not trained on;
            0 for none. Unused when the data has validation files.
        initialize_from_hf: Folder of a Hugging Face model to start from.
        initialize_model_from_checkpoint_path: Our checkpoint to start from.
        reference_cache_dir: Folder that keeps the reference's log-probabilities between runs; None keeps none.
        reference_batch_size: Pairs at a time when they are computed.
        hf_save_path: Where the trained model goes, adapters merged.
        peft_save_path: Where the adapter goes, in PEFT's format.
    """

    data: PreferenceLmDataConfig = field(default_factory=PreferenceLmDataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    model: LmConfig = field(default_factory=LlamaConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    reference: ReferenceConfig = field(default_factory=AdapterBaseReference)
    adapter: LoraConfig | None = None
    beta: float = 0.1
    train_seq_len: int | None = None
    validation_split_fraction: float = 0.1
    initialize_from_hf: str | None = None
    initialize_model_from_checkpoint_path: str | None = None
    reference_cache_dir: str | None = None
    reference_batch_size: int = 8
    hf_save_path: str | None = None
    peft_save_path: str | None = None

    def __post_init__(self) -> None:
        check_beta(self.beta)
        if not 0 <= self.validation_split_fraction < 1:
            raise ConfigError(
                f"{self.validation_split_fraction}; expected 0 <= fraction < 1.", key="validation_split_fraction"
            )
        if self.initialize_from_hf and self.initialize_model_from_checkpoint_path:
            key = "initialize_model_from_checkpoint_path"
            raise ConfigError("initialize_from_hf is set too; expected one.", key=key)
        if self.peft_save_path and self.adapter is None:
            raise ConfigError("adapter is not set; there would be nothing to save.", key="peft_save_path")


@dataclass(frozen=True)
class DpoResult:
    """What a run leaves behind.

    Attributes:
        step: Updates done.
        final_loss: Loss of the last step in nats.
        num_pairs: Pairs trained on.
        checkpoint_path: Last checkpoint, or None.
    """

    step: int
    final_loss: float
    num_pairs: int
    checkpoint_path: str | None


def train(config: TrainDpoConfig, *, progress: bool = True) -> DpoResult:
    """Train, from a fresh start or from this run's newest checkpoint.

    Raises:
        ConfigError: the parts do not fit together.
        DataConfigError: no usable pairs.
    """
    model_key, adapter_key, data_key, training_key = jax.random.split(jax.random.PRNGKey(config.trainer.seed), 4)
    start, shape = _start(config, model_key)
    Pos = Axis("position", config.train_seq_len or shape.context_length)
    reference = _reference(config, start)
    train_pairs, validation = _pairs(config, Pos)
    train_pairs, validation = (
        attach_reference(p, reference, batch_size=config.reference_batch_size, cache_dir=config.reference_cache_dir)
        for p in (train_pairs, validation)
    )
    del reference

    def adapted(model: Any) -> Any:
        return model if config.adapter is None else loraize(model, config.adapter, key=adapter_key)

    def loss(model: Any, batch: DpoExample, *, key: jax.Array | None = None) -> Any:
        return dpo_loss(model, batch, beta=config.beta)

    flops = 2 * 3 * Pos.size * shape.flops_per_token(_vocab(start).size, Pos.size)
    work = WorkPerExample(tokens=2 * Pos.size, flops=flops)
    optimizer = config.optimizer.build(config.trainer.num_train_steps)
    with Trainer(config.trainer, optimizer, loss, work=work, progress=progress) as trainer:
        trainer.tracker.log_hyperparameters(levanter_config.encode(config))
        dataset = ListAsyncDataset(train_pairs).shuffle(data_key).repeat(None)
        fresh = lambda: adapted(shape.build(_vocab(start), key=model_key))  # noqa: E731 -- traced by the trainer
        loader = trainer.data_loader(dataset)
        source = config.initialize_from_hf or config.initialize_model_from_checkpoint_path or FROM_SEED
        base = BaseModel(lambda: adapted(start), source)
        state = trainer.initial_state(training_key, model_init=fresh, loader=loader, base=base)
        if int(state.step) == 0:
            state = with_model(state, adapted(start))
        if validation:
            trainer.add_eval_hook(ListAsyncDataset(validation), "dpo")
        outcome = trainer.train(state, loader)
        _export(config, outcome.state.model)
        return DpoResult(int(outcome.state.step), outcome.loss, len(train_pairs), outcome.checkpoint_path)


def _start(config: TrainDpoConfig, key: jax.Array) -> tuple[Any, Any]:
    """The policy before training, without adapter, and its config."""
    hf, checkpoint = config.initialize_from_hf, config.initialize_model_from_checkpoint_path
    if hf is not None:
        shape, model = load_hf_checkpoint(hf)
        return model, shape
    fresh = config.model.build(Axis("vocab", config.data.the_tokenizer().vocab_size), key=key)
    loaded = starting_weights(fresh, hf=None, checkpoint=checkpoint)
    return (fresh if loaded is None else loaded), config.model


def _reference(config: TrainDpoConfig, start: Any) -> Any:
    reference = config.reference
    if not isinstance(reference, SeparateReference):
        return start
    if reference.is_hf:
        _, model = load_hf_checkpoint(reference.model_path)
    else:
        model = load_checkpoint(start, latest_checkpoint_path(reference.model_path), subpath="model")
    if _vocab(model).size != _vocab(start).size:
        raise ConfigError(
            f"reference vocabulary={_vocab(model).size}, policy vocabulary={_vocab(start).size}; expected equal: "
            "log-probabilities of different tokens cannot be compared.",
            key="reference.model_path",
        )
    return model


def _pairs(config: TrainDpoConfig, Pos: Axis) -> tuple[list[DpoExample], list[DpoExample]]:
    pairs, validation = config.data.pairs(Pos), config.data.pairs(Pos, VALIDATION)
    held_out = 0 if validation else math.floor(len(pairs) * config.validation_split_fraction)
    if held_out:
        pairs, validation = pairs[:-held_out], pairs[-held_out:]
    return pairs, validation


def _vocab(model: Any) -> Axis:
    return model.Vocab


def _export(config: TrainDpoConfig, model: Any) -> None:
    if jax.process_index() != 0:
        return
    if config.peft_save_path is not None and config.adapter is not None:
        save_peft_pretrained(model, config.adapter, config.peft_save_path)
    if config.hf_save_path is not None:
        merged = merge_lora_modules(model) if is_lora_model(model) else model
        tokenizer = None if config.data.tokenizer == "passthrough" else config.data.tokenizer  # which has no files
        save_hf_checkpoint(merged, model.config, config.hf_save_path, tokenizer=tokenizer)


@levanter_config.main()
def main(config: TrainDpoConfig) -> None:
    """Run :func:`train` as a command."""
    run_as_command(train, config)


if __name__ == "__main__":
    main()
