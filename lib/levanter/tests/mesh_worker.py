"""Train a few steps under several layouts of the devices there are; one JSON line on stdout: results by layout.

Usage: mesh_worker.py FOLDER LAYOUTS_JSON [PROCESS NUM_PROCESSES PORT]; a layout is {"axes": ..., "param_mapping": ...,
"per_device": ...}. With several processes the result also tells whether all of them restored what they saved together.
"""

import json
import sys

import haliax as hax
import jax
import numpy as np
from haliax import Axis
from jax.experimental import multihost_utils
from levanter._checkpoint.policy import KeepEvery
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig, load_checkpoint
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.examples import LmExample
from levanter.mesh import MeshConfig
from levanter.models.llama import LlamaConfig
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.sharding import place
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig
from levanter.tree_paths import tree_digest

STEPS, VOCAB = 4, 50
MODEL = LlamaConfig(max_seq_len=16, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=4)


def examples():
    """Arithmetic sequences, with uneven loss masks so that a mean of means would show."""
    rng = np.random.default_rng(0)
    rows = (np.arange(16)[None] * 3 + rng.integers(0, VOCAB, (96, 1))) % VOCAB
    masks = rng.random(rows.shape) < 0.7
    Pos = Axis("position", 16)
    return [
        LmExample.causal(hax.named(row.astype(np.int32), Pos), loss_weight=hax.named(mask.astype(np.float32), Pos))
        for row, mask in zip(rows, masks, strict=True)
    ]


def loss_fn(model, batch, *, key=None):
    return next_token_loss(model, batch)


def run(folder, layout, resume_from=None):
    """Losses of the steps, shape of a shard of a weight, and whether the checkpoint opens on one device unchanged."""
    config = TrainerConfig(
        train_batch_size=16,
        num_train_steps=STEPS,
        per_device_parallelism=layout.get("per_device", -1),
        log_dir=folder,
        watch=WatchConfig(interval=0),
        mesh=MeshConfig(axes=layout["axes"], param_mapping=layout.get("param_mapping", {"embed": "data"})),
        load_checkpoint_path=resume_from,
        checkpointer=CheckpointerConfig(base_path=f"{folder}/ckpt", keep=[KeepEvery(2)], save_interval=None),
    )
    losses = []
    key = jax.random.PRNGKey(0)
    optimizer = AdamConfig(learning_rate=1e-2, warmup=0).build(STEPS)
    with Trainer(config, optimizer, loss_fn, progress=False) as trainer:
        trainer.add_metrics_hook(lambda step, metrics: losses.append(metrics["train/loss"]))
        state = trainer.initial_state(key, model_init=lambda: MODEL.build(Axis("vocab", VOCAB), key=key))
        q = state.model.transformer.layers.stacked.self_attn.q_proj.weight.array
        outcome = trainer.train(state, trainer.data_loader(ListAsyncDataset(examples())))
    if jax.process_count() > 1:
        again = trainer.initial_state(key, model_init=lambda: MODEL.build(Axis("vocab", VOCAB), key=key))
        trained, restored = (multihost_utils.process_allgather(s.model, tiled=True) for s in (outcome.state, again))
        digest = tree_digest(trained)
        same = tree_digest(restored) == digest and int(again.step) == STEPS
        return {"losses": losses, "digest": digest, "same": same, "checkpoint": outcome.checkpoint_path}
    whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), outcome.state.model)
    restored = load_checkpoint(whole, outcome.checkpoint_path, subpath="model")
    elsewhere = place(restored, trainer.param_mapping, trainer.mesh)
    return {
        "losses": losses,
        "shard": list(q.sharding.shard_shape(q.shape)),
        "same": tree_digest(restored) == tree_digest(outcome.state.model) == tree_digest(elsewhere),
    }


if __name__ == "__main__":
    folder, layouts = sys.argv[1], json.loads(sys.argv[2])
    if len(sys.argv) > 3:
        process, count, port = map(int, sys.argv[3:])
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", count, process)
    print(json.dumps({name: run(f"{folder}/{i}", layout) for i, (name, layout) in enumerate(layouts.items())}))
