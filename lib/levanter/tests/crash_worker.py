"""A training run in its own process, for tests that kill it.

Usage: crash_worker.py FOLDER [STEPS]. Everything the run leaves is under FOLDER; the last line on stdout is its digest.
The batch grows half-way, weights are averaged and a validation set is read, so that all of that has to survive as well.
"""

import sys
from datetime import timedelta

import haliax as hax
import numpy as np
from haliax import Axis
from levanter._checkpoint.policy import KeepEvery
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.config import DirectDatasetComponent, LmDataConfig
from levanter.data.text.examples import LmExample
from levanter.main.train_lm import TrainLmConfig, train
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig
from levanter.optim.model_averaging import EmaConfig
from levanter.schedule import ScheduleStep
from levanter.trainer_config import TrainerConfig

VOCAB = 64
LENGTH = 32


def dataset(count: int, seed: int) -> ListAsyncDataset:
    """Noisy arithmetic sequences."""
    rng = np.random.default_rng(seed)
    rows = (np.arange(LENGTH)[None] * 3 + rng.integers(0, VOCAB, (count, 1))) % VOCAB
    rows = np.where(rng.random(rows.shape) < 0.1, rng.integers(0, VOCAB, rows.shape), rows).astype(np.int32)
    return ListAsyncDataset([LmExample.causal(hax.named(row, Axis("position", LENGTH))) for row in rows])


def config(folder: str, steps: int) -> TrainLmConfig:
    """The run."""
    component = DirectDatasetComponent(datasets={"train": dataset(400, 0), "validation": dataset(16, 1)})
    return TrainLmConfig(
        data=LmDataConfig(tokenizer="passthrough", vocab_size=VOCAB, components={"synthetic": component}),
        model=LlamaConfig(
            max_seq_len=LENGTH, hidden_dim=64, intermediate_dim=128, num_layers=2, num_heads=4, num_kv_heads=2
        ),
        optimizer=AdamConfig(learning_rate=3e-3, warmup=5),
        trainer=TrainerConfig(
            train_batch_size=[ScheduleStep(0, 8), ScheduleStep(steps // 2, 16)],
            num_train_steps=steps,
            steps_per_eval=10,
            log_dir=f"{folder}/logs",
            watch=WatchConfig(interval=0),
            model_averaging=EmaConfig(0.9),
            checkpointer=CheckpointerConfig(
                base_path=f"{folder}/checkpoints", keep=[KeepEvery(15)], save_interval=timedelta(milliseconds=50)
            ),
            jax_compilation_cache_dir=f"{folder}/../compiled",
            jax_config={"jax_persistent_cache_min_compile_time_secs": 0.0},
        ),
    )


if __name__ == "__main__":
    result = train(config(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60), progress=False)
    print(result.step, result.final_loss, result.parameter_digest)
