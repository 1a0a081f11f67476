"""From a recipe to levanter's configs: the one place where the two vocabularies meet."""

from __future__ import annotations

from datetime import timedelta

from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.data.text.config import DatasetComponent, LmDataConfig
from levanter.divergence import DivergenceConfig
from levanter.main import train_lm
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig, decode_shape
from levanter.tracker.json_file import JsonFileConfig
from levanter.trainer_config import TrainerConfig

from marin.training.recipe import AdamWRecipe, LmRecipe, ModelShape, TrainLmConfig

SAVE_INTERVAL = timedelta(seconds=15)
"""Time between checkpoints; a killed run loses at most this much work."""

DIVERGENCE_WARMUP_STEPS = 5
"""Steps before the loss is judged against its lowest."""

EVALUATIONS = 10
"""Validation passes spread over a run."""


def llama_config(shape: ModelShape) -> LlamaConfig:
    """The levanter config of a shape."""
    return LlamaConfig(
        max_seq_len=shape.seq_len,
        hidden_dim=shape.hidden_dim,
        intermediate_dim=shape.intermediate_dim,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        tie_word_embeddings=shape.tie_word_embeddings,
        init_scheme="normal",
        initializer_range=shape.init_std,
    )


def adam_config(recipe: AdamWRecipe) -> AdamConfig:
    """The levanter config of an optimiser recipe."""
    return AdamConfig(
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        warmup=recipe.warmup,
        min_lr_ratio=recipe.min_lr_ratio,
        max_grad_norm=recipe.max_grad_norm,
        lr_schedule=decode_shape(recipe.schedule),
    )


def trainer_config(recipe: LmRecipe, *, run_path: str) -> TrainerConfig:
    """The levanter trainer config of a run whose files lie under ``run_path``."""
    return TrainerConfig(
        seed=recipe.seed,
        id="run",
        log_dir=f"{run_path}/logs",
        tracker=JsonFileConfig(output_path=f"{run_path}/tracker"),
        train_batch_size=recipe.batch_size,
        num_train_steps=recipe.num_steps,
        steps_per_eval=max(1, recipe.num_steps // EVALUATIONS),
        checkpointer=CheckpointerConfig(
            base_path=f"{run_path}/checkpoints",
            append_run_id_to_base_path=False,
            save_interval=SAVE_INTERVAL,
            keep=None,
        ),
        watch=WatchConfig(interval=0),
        divergence=DivergenceConfig(
            max_loss_ratio=recipe.max_loss_ratio, patience=recipe.max_bad_steps, warmup_steps=DIVERGENCE_WARMUP_STEPS
        ),
    )


def train_lm_config(config: TrainLmConfig) -> train_lm.TrainLmConfig:
    """The levanter config of a training step; checkpoints and curves go to its scratch folder."""
    recipe = config.recipe
    return train_lm.TrainLmConfig(
        data=LmDataConfig(
            tokenizer=config.tokenizer_path,
            components={"corpus": DatasetComponent(cache_dir=config.cache_path)},
            auto_build_caches=False,
            shuffle=True,
        ),
        trainer=trainer_config(recipe, run_path=config.scratch_path),
        model=llama_config(recipe.model),
        optimizer=adam_config(recipe.optimizer),
        z_loss_weight=recipe.z_loss_weight,
    )
