"""Train a few steps on 8 virtual CPU devices under one layout; prints the losses and a resharded restore's digest.

Usage: mesh_worker.py FOLDER AXES_JSON PARAM_MAPPING_JSON PER_DEVICE
"""

import json
import sys

import haliax as hax
import jax
import numpy as np
from haliax import Axis
from levanter._checkpoint.policy import KeepEvery
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig, load_checkpoint
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.examples import LmExample
from levanter.mesh import MeshConfig
from levanter.models.llama import LlamaConfig
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig
from levanter.tree_paths import tree_digest

folder, axes, mapping, per_device = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
model = LlamaConfig(max_seq_len=16, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=4)
config = TrainerConfig(
    train_batch_size=16,
    num_train_steps=5,
    per_device_parallelism=per_device,
    log_dir=folder,
    watch=WatchConfig(interval=0),
    mesh=MeshConfig(axes=axes, param_mapping=mapping),
    checkpointer=CheckpointerConfig(base_path=f"{folder}/ckpt", keep=[KeepEvery(5)], save_interval=None),
)
VOCAB = 50
rows = (np.arange(16)[None] * 3 + np.random.default_rng(0).integers(0, VOCAB, (96, 1))) % VOCAB
examples = [LmExample.causal(hax.named(row.astype(np.int32), Axis("position", 16))) for row in rows]
losses = []
key = jax.random.PRNGKey(0)


def loss_fn(model, batch, *, key=None):
    return next_token_loss(model, batch)


with Trainer(config, AdamConfig(learning_rate=1e-2, warmup=0).build(5), loss_fn, progress=False) as trainer:
    trainer.add_metrics_hook(lambda step, metrics: losses.append(metrics["train/loss"]))
    state = trainer.initial_state(key, model_init=lambda: model.build(Axis("vocab", VOCAB), key=key))
    q = state.model.transformer.layers.stacked.self_attn.q_proj.weight.array
    outcome = trainer.train(state, trainer.data_loader(ListAsyncDataset(examples)))
assert outcome.checkpoint_path is not None
whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), outcome.state.model)
restored = load_checkpoint(whole, outcome.checkpoint_path, subpath="model")
print(
    json.dumps(
        {
            "losses": losses,
            "shard": list(q.sharding.shard_shape(q.shape)),
            "same": tree_digest(restored) == tree_digest(outcome.state.model),
        }
    )
)
