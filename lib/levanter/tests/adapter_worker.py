"""One of several processes that train an adapter and resume; one JSON line on stdout.

Usage: adapter_worker.py FOLDER PROCESS NUM_PROCESSES PORT. The line holds the step that a run over the same base
resumes at, the message that one over another base gets, and the checkpoint.
"""

import json
import sys

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from haliax import Axis
from levanter import tree_paths
from levanter._trainer.base import BaseModel
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.divergence import DivergenceConfig
from levanter.errors import CheckpointMismatchError
from levanter.layers.linear import LoraLinear
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig

Embed, Out, Rank = Axis("embed", 10), Axis("out", 4), Axis("lora_rank", 1)


def adapted(last: float = 39.0) -> LoraLinear:
    """A linear layer whose weight counts up to ``last``, with an adapter."""
    weight = jnp.arange(40.0).at[-1].set(last).reshape(10, 4)
    return LoraLinear(hax.named(weight, (Embed, Out)), None, hax.ones((Embed, Rank)), hax.zeros((Rank, Out)), 1.0)


def loss_fn(model, batch, *, key=None):
    return jnp.mean(jnp.square(batch.array @ (model.weight.array + model.delta().array)))


def make_trainer(folder: str) -> Trainer:
    config = TrainerConfig(
        train_batch_size=2,
        num_train_steps=2,
        log_dir=f"{folder}/logs",
        watch=WatchConfig(interval=0),
        divergence=DivergenceConfig(enabled=False),
        checkpointer=CheckpointerConfig(base_path=f"{folder}/checkpoints", keep=None, save_interval=None),
    )
    return Trainer(config, optax.sgd(0.01), loss_fn, progress=False)


def begin(trainer: Trainer, base: BaseModel | None):
    """A fresh state, or the one that the run's newest checkpoint leads to."""
    return trainer.initial_state(jax.random.PRNGKey(0), model_init=adapted, base=base)


def run(folder: str) -> dict[str, object]:
    examples = ListAsyncDataset([hax.named(np.full(10, i / 8, np.float32), Embed) for i in range(8)])
    with make_trainer(folder) as trainer:
        fresh = begin(trainer, None)
        shard = fresh.model.weight.array.sharding.shard_shape((10, 4))
        path = trainer.train(fresh, trainer.data_loader(examples)).checkpoint_path
        resumed = begin(trainer, BaseModel(adapted, "here"))
        try:
            begin(trainer, BaseModel(lambda: adapted(last=0.0), "elsewhere"))
        except CheckpointMismatchError as error:
            refused = str(error)
        return {"step": int(resumed.step), "refused": refused, "checkpoint": path, "shard": shard}


if __name__ == "__main__":
    folder, (process, count, port) = sys.argv[1], map(int, sys.argv[2:])
    tree_paths.BLOCK_BYTES = 48  # three rows of ten
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", count, process)
    print(json.dumps(run(folder)))
