"""One of several processes that train a vector until somebody stops them; prints the step and the checkpoint.

Usage: preempt_worker.py FOLDER PROCESS NUM_PROCESSES PORT. ``FOLDER/ready-PROCESS`` appears once steps are under way.
"""

import pathlib
import sys

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.data.dataset import ListAsyncDataset
from levanter.divergence import DivergenceConfig
from levanter.errors import PreemptedError
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig

folder, (process, count, port) = pathlib.Path(sys.argv[1]), map(int, sys.argv[2:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", count, process)
Feature = hax.Axis("feature", 4)
examples = [hax.named(np.full(4, i / 8, np.float32), Feature) for i in range(8)]
config = TrainerConfig(
    train_batch_size=2,
    num_train_steps=1_000_000,
    log_dir=str(folder / "logs"),
    watch=WatchConfig(interval=0),
    divergence=DivergenceConfig(enabled=False),
    checkpointer=CheckpointerConfig(base_path=str(folder / "checkpoints"), keep=None, save_interval=None),
)


def loss_fn(model, batch, *, key=None):
    return jnp.mean(jnp.square(batch.array @ model.array - 1.0))


def say_ready(step, metrics):
    if step == 5:
        (folder / f"ready-{process}").touch()


with Trainer(config, optax.sgd(0.1), loss_fn, progress=False) as trainer:
    trainer.add_metrics_hook(say_ready)
    state = trainer.initial_state(jax.random.PRNGKey(0), model_init=lambda: hax.ones(Feature))
    try:
        trainer.train(state, trainer.data_loader(ListAsyncDataset(examples).repeat()))
    except PreemptedError as error:
        print(error.step, error.checkpoint_path)
