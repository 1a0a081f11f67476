"""Train a language model: read the config, make the data, the model and the optimizer, run the loop, export.

    python -m levanter.main.train_lm --config_path config.yaml --trainer.num_train_steps 100

Works from local files alone. Exit codes: 0 done, 1 the run failed (storage, data), 2 bad configuration, 3 diverged, 75
preempted after saving (start it again to resume), 124 stalled.
"""

import dataclasses
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
from haliax import Axis

from levanter import config as levanter_config
from levanter._trainer.base import BaseModel, load_state
from levanter.adaptor.lora import LoraConfig, loraize, unwrap_lora_modules
from levanter.callbacks.core import StepInfo
from levanter.checkpoint import latest_checkpoint_path
from levanter.compat.hf_checkpoints import read_hf_config, save_hf_checkpoint
from levanter.compat.peft import save_merged_hf_model, save_peft_pretrained
from levanter.data.text.config import DirectDatasetComponent, LmDataConfig
from levanter.errors import ConfigError
from levanter.main.start import run_as_command, starting_weights, with_model
from levanter.models.decoder import DecoderConfig
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import HfLmConfig, LmConfig, count_parameters
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig, OptimizerConfig
from levanter.optim.weight_decay import decayed_names
from levanter.throughput import WorkPerExample
from levanter.trainer import Trainer, metrics_path
from levanter.trainer_config import TrainerConfig
from levanter.trainer_state import trainable
from levanter.tree_paths import tree_digest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainLmConfig:
    """Everything a run is made of.

    Attributes:
        data: Where the text comes from.
        trainer: How to train.
        model: What to train.
        optimizer: How to update.
        train_seq_len: Tokens in an example; None means the model's longest.
        z_loss_weight: Weight of the squared log-partition function.
        data_seed: Replaces the data key alone, so that the order of the data can vary under one initialisation.
        vocab_size: Rows of the embedding; None takes the tokenizer's.
        initialize_from_hf: Folder of a Hugging Face model whose weights to start from.
        use_hf_model_config: Take the model's shape from that folder too.
        initialize_from_checkpoint_path: Start from another run's full state, step set to 0.
        initialize_model_from_checkpoint_path: Start from another run's weights, fresh optimizer.
        hf_save_path: Export the model there, in ``step-<n>`` folders.
        hf_save_steps: Updates between exports; the last step is always exported.
        hf_save_dtype: Dtype of exported weights; None keeps the parameter dtype.
        lora: Train adapters of this kind and freeze the rest; None trains everything.
        peft_save_path: Export the adapters there, in ``step-<n>`` folders that ``peft`` reads.
        merged_hf_save_path: Export the model with its adapters folded in, in ``step-<n>`` folders.
    """

    data: LmDataConfig = field(default_factory=LmDataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    model: LmConfig = field(default_factory=LlamaConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    train_seq_len: int | None = None
    z_loss_weight: float = 0.0
    data_seed: int | None = None
    vocab_size: int | None = None
    initialize_from_hf: str | None = None
    use_hf_model_config: bool = False
    initialize_from_checkpoint_path: str | None = None
    initialize_model_from_checkpoint_path: str | None = None
    hf_save_path: str | None = None
    hf_save_steps: int | None = 10_000
    hf_save_dtype: str | None = None
    lora: LoraConfig | None = None
    peft_save_path: str | None = None
    merged_hf_save_path: str | None = None

    def __post_init__(self) -> None:
        sources = [
            name
            for name in (
                "initialize_from_hf",
                "initialize_from_checkpoint_path",
                "initialize_model_from_checkpoint_path",
            )
            if getattr(self, name) is not None
        ]
        if len(sources) > 1:
            raise ConfigError(f"{' and '.join(sources)} are all set; expected at most one.", key=sources[1])
        if self.use_hf_model_config and self.initialize_from_hf is None:
            raise ConfigError("needs initialize_from_hf to be set.", key="use_hf_model_config")
        if self.lora is not None and self.hf_save_path is not None:
            raise ConfigError(
                "exports a plain model; with lora set peft_save_path or merged_hf_save_path.", key="hf_save_path"
            )
        if self.lora is None and (self.peft_save_path or self.merged_hf_save_path):
            key = "peft_save_path" if self.peft_save_path else "merged_hf_save_path"
            raise ConfigError("needs lora to be set.", key=key)

    @property
    def sequence_length(self) -> int:
        """Tokens in an example."""
        return self.train_seq_len or self.model.context_length


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves behind.

    Attributes:
        step: Updates done.
        final_loss: Loss of the last step, nats per token.
        tokens: Tokens seen, resumed ones included.
        checkpoint_path: Last checkpoint, or None.
        metrics_path: ``metrics.jsonl`` when the json_file tracker ran, else None.
        parameter_digest: SHA-256 over the final parameters; empty when they are spread over several processes.
    """

    step: int
    final_loss: float
    tokens: int
    checkpoint_path: str | None
    metrics_path: str | None
    parameter_digest: str


def train(config: TrainLmConfig, *, progress: bool = True, cancel: threading.Event | None = None) -> TrainResult:
    """Train, from a fresh start or from this run's newest checkpoint.

    Args:
        config: The run.
        progress: Show a progress line.
        cancel: Stops the run between steps when set; the state is saved first.

    Raises:
        DivergedError: the loss went wrong; the curve is on disk.
        CancelledError: ``cancel`` was set.
        PreemptedError: SIGTERM arrived; the state was saved.
        ConfigError: the parts do not fit together.
    """
    config = _with_hf_shape(config)
    # One program instead of one for every operation: this is the time before the first step.
    keys = jax.jit(lambda: tuple(jax.random.split(jax.random.PRNGKey(config.trainer.seed), 4)))()
    data_key, _, model_key, training_key = keys
    if config.data_seed is not None:
        data_key = jax.random.PRNGKey(config.data_seed)
    Pos = Axis("position", config.sequence_length)
    Vocab = Axis("vocab", vocabulary_size(config))
    optimizer = config.optimizer.build(config.trainer.num_train_steps)
    with Trainer(
        config.trainer, optimizer, make_loss(config), work=_work(config, Vocab), cancel=cancel, progress=progress
    ) as trainer:
        trainer.tracker.log_hyperparameters(_hparams(config))
        loader = trainer.data_loader(config.data.train_set(Pos, trainer.batch_schedule, key=data_key))
        state = trainer.initial_state(
            training_key,
            model_init=lambda: _adapt(config, config.model.build(Vocab, key=model_key)),
            loader=loader,
            base=_base(config, Vocab),
        )
        if int(state.step) == 0:
            state = _initialize_from(config, state)
        for name, dataset in config.data.validation_sets(Pos).items():
            trainer.add_eval_hook(dataset, name)
        _add_export_hooks(trainer, config)
        _log_shape(trainer, config, state.model)
        outcome = trainer.train(state, loader)
        steps = int(outcome.state.step)
        return TrainResult(
            step=steps,
            final_loss=outcome.loss,
            tokens=trainer.batch_schedule.global_data_offset_by_step(steps) * Pos.size,
            checkpoint_path=outcome.checkpoint_path,
            metrics_path=metrics_path(trainer.tracker),
            parameter_digest=tree_digest(outcome.state.model) if jax.process_count() == 1 else "",
        )


@levanter_config.main()
def main(config: TrainLmConfig) -> None:
    """Run :func:`train` as a command."""
    run_as_command(train, config)


def vocabulary_size(config: TrainLmConfig) -> int:
    """Rows of the embedding: as configured, else as many as the tokenizer has."""
    return config.vocab_size or config.data.vocab_size or config.data.the_tokenizer.vocab_size


def make_loss(config: TrainLmConfig) -> Any:
    """The run's loss function: next-token cross-entropy with its z-loss."""

    def loss(model: Any, batch: Any, *, key: jax.Array | None = None) -> Any:
        return next_token_loss(model, batch, logsumexp_weight=config.z_loss_weight, with_router_losses=key is not None)

    return loss


def _work(config: TrainLmConfig, Vocab: Axis) -> WorkPerExample:
    length = config.sequence_length
    forward = config.model.flops_per_token(Vocab.size, length)
    return WorkPerExample(tokens=length, flops=3 * forward * length)


def _hparams(config: TrainLmConfig) -> dict[str, Any]:
    """The configuration as plain values; data sets that exist only in memory have none and are left out."""
    components = {
        name: DirectDatasetComponent(tags=part.tags) if isinstance(part, DirectDatasetComponent) else part
        for name, part in config.data.components.items()
    }
    return levanter_config.encode(
        dataclasses.replace(config, data=dataclasses.replace(config.data, components=components))
    )


def _log_shape(trainer: Trainer, config: TrainLmConfig, model: Any) -> None:
    total, trained = count_parameters(model), count_parameters(trainable(model))
    trainer.tracker.log_summary(
        {
            "parameter_count": total,
            "trainable_parameter_count": trained,
            "fraction_trainable": trained / max(total, 1),
            "backend": jax.default_backend(),
            "num_devices": jax.device_count(),
            "num_hosts": jax.process_count(),
        }
    )
    decayed = decayed_names(trainable(model), config.optimizer.weight_decay_modules)
    trainer.tracker.log_hyperparameters({"decayed_weights": decayed})
    logger.info("training %s parameters on %d x %s", f"{trained:,}", jax.device_count(), jax.default_backend())


def _with_hf_shape(config: TrainLmConfig) -> TrainLmConfig:
    if not config.use_hf_model_config or config.initialize_from_hf is None:
        return config
    return dataclasses.replace(config, model=read_hf_config(config.initialize_from_hf))


def _initialize_from(config: TrainLmConfig, state: Any) -> Any:
    """Replace fresh weights, or the whole fresh state, by those of another run."""
    model = _starting_weights(config, unwrap_lora_modules(state.model), state.model.Vocab.size)
    if model is not None:
        return with_model(state, _adapt(config, model))
    if config.initialize_from_checkpoint_path is not None:
        path = latest_checkpoint_path(config.initialize_from_checkpoint_path)
        loaded = load_state(state, path)
        # A restarted run restarts its schedule: the optimizer keeps its moments and forgets its step count.
        return dataclasses.replace(
            loaded, step=state.step, opt_state=_reset_counts(loaded.opt_state), training_key=state.training_key
        )
    return state


def _starting_weights(config: TrainLmConfig, template: Any, rows: int) -> Any:
    """Other weights than fresh ones, without adapters, or None."""
    hf = config.initialize_from_hf
    shape = None if hf is None else _exportable(config)
    path = config.initialize_model_from_checkpoint_path
    seed = config.trainer.seed
    return starting_weights(template, hf=hf, checkpoint=path, rows=rows, config=shape, seed=seed)


def _base(config: TrainLmConfig, Vocab: Axis) -> BaseModel | None:
    """Where a resumed run finds the weights under its adapters; None where they are drawn from the seed."""
    source = config.initialize_from_hf or config.initialize_model_from_checkpoint_path
    if config.lora is None or source is None:
        return None

    def load() -> Any:
        template = eqx.filter_eval_shape(lambda key: config.model.build(Vocab, key=key), jax.random.PRNGKey(0))
        return _adapt(config, _starting_weights(config, template, Vocab.size))

    return BaseModel(load, source)


def _reset_counts(opt_state: Any) -> Any:
    def visit(node: Any) -> Any:
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            fields = {name: visit(getattr(node, name)) for name in node._fields}
            if "count" in fields and "hyperparams" in fields:
                fields["count"] = jax.numpy.zeros_like(fields["count"])
            return type(node)(**fields)
        return tuple(visit(child) for child in node) if isinstance(node, tuple) else node

    return visit(opt_state)


def _adapt(config: TrainLmConfig, model: Any) -> Any:
    """The model with its fresh adapters, if there are to be any."""
    if config.lora is None:
        return model
    if not isinstance(config.model, DecoderConfig):
        raise ConfigError(
            f"{type(config.model).__name__} takes no adapters; expected a decoder family. Train it whole.", key="lora"
        )
    return loraize(model, config.lora, key=jax.random.fold_in(jax.random.PRNGKey(config.trainer.seed), 1))


def _exportable(config: TrainLmConfig) -> HfLmConfig:
    if not isinstance(config.model, HfLmConfig):
        raise ConfigError(
            f"{type(config.model).__name__} has no Hugging Face folder; expected a family that has one.",
            key="model",
        )
    return config.model


def _add_export_hooks(trainer: Trainer, config: TrainLmConfig) -> None:
    tokenizer = None if config.data.tokenizer == "passthrough" else config.data.tokenizer  # which has no files
    files = {"tokenizer": tokenizer, "dtype": config.hf_save_dtype}

    def plain(model: Any, path: str) -> None:
        save_hf_checkpoint(model, _exportable(config), path, **files)

    def adapters(model: Any, path: str) -> None:
        base = config.initialize_from_hf
        save_peft_pretrained(model, config.lora or LoraConfig(), path, base_model_name_or_path=base)

    def merged(model: Any, path: str) -> None:
        save_merged_hf_model(model, path, **files)

    folders = {plain: config.hf_save_path, adapters: config.peft_save_path, merged: config.merged_hf_save_path}

    def export(info: StepInfo, force: bool = False) -> None:
        for save, folder in folders.items():
            if folder is not None:
                path = f"{folder}/step-{info.next_step}"
                save(info.eval_model, path)
                logger.info("exported %s", path)

    if any(folder is not None for folder in folders.values()):
        trainer.add_hook(export, every=config.hf_save_steps or trainer.config.num_train_steps)


if __name__ == "__main__":
    main()
