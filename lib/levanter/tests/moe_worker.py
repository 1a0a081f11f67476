"""On 8 virtual CPU devices: experts, the grug model and matrix optimizers give what one device gives. Prints JSON."""

import dataclasses
import json

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from haliax import Axis
from jax.sharding import Mesh
from levanter.data.text.examples import LmExample
from levanter.grug.model import GrugMoeConfig
from levanter.grug.train import Batch, initial_state, make_mesh, make_train_step
from levanter.layers.expert_parallel import sharded_moe_mlp
from levanter.layers.moe import ExpertWeights, route_top_k
from levanter.models.loss import next_token_loss
from levanter.models.mixtral import MixtralConfig
from levanter.optim.config import OptimizerConfig
from levanter.sharding import compute_sharding, place

DEVICES = np.asarray(jax.devices())
assert DEVICES.size == 8
LAYOUTS = {
    "data 2, expert 2, model 2": ({"data": 2, "expert": 2, "model": 2}, ["data", "expert"]),
    "tokens not split over experts": ({"data": 2, "expert": 4}, ["data"]),
    "expert 8": ({"expert": 8}, ["expert"]),
}


def mesh_of(sizes: dict[str, int]) -> Mesh:
    return Mesh(DEVICES.reshape(tuple(sizes.values())), tuple(sizes))


def worst(left, right) -> float:
    """Largest difference over the largest value of the right side, over all arrays."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max() / (np.abs(np.asarray(b)).max() + 1e-9)) for a, b in pairs
    )


def dense(x, selected, combine, weights: ExpertWeights):
    """Every expert over every token, weighed: the definition."""
    total = jnp.zeros_like(x)
    for e in range(weights.gate.shape[0]):
        hidden = jax.nn.silu(x @ weights.gate[e]) * (x @ weights.up[e])
        total = total + jnp.sum(jnp.where(selected == e, combine, 0), axis=1)[:, None] * (hidden @ weights.down[e])
    return total


def kept(selected: np.ndarray, e: int, factor: float, data: int, expert: int) -> np.ndarray:
    """Which assignments survive: of each batch shard, the first of each device's in expert order, up to its limit."""
    result = np.zeros(selected.shape, bool)
    for rows in np.split(np.arange(len(selected)), data):
        flat = selected[rows].ravel()
        limit = max(e // expert, int(np.ceil(factor * (flat < e).sum() / expert)))
        keep = np.zeros(flat.size, bool)
        for device in range(expert):
            mine = np.flatnonzero(flat // (e // expert) == device)
            keep[mine[np.argsort(flat[mine], kind="stable")][:limit]] = True
        result[rows] = keep.reshape(-1, selected.shape[1])
    return result


def experts_report() -> dict:
    """Skewed choices, one expert that nobody chose, one token in six padding: every kernel on every layout."""
    batch, length, k, e, d, i = 8, 6, 2, 8, 12, 16
    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    x = jax.random.normal(keys[0], (batch * length, d))
    shapes = ((e, d, i), (e, d, i), (e, i, d))
    weights = ExpertWeights(*(jax.random.normal(q, s) * 0.3 for q, s in zip(keys[1:4], shapes, strict=True)))
    skew = jnp.array([2.0, 1, 0, 0, 0, 0, 0, -100])
    routing = route_top_k(2 * jax.random.normal(keys[4], (batch * length, e)) + skew, k, normalise=True)
    selected = jnp.asarray(routing.selected_TK).at[::6].set(e)
    probe = jax.random.normal(keys[5], x.shape)

    def run(compute, combine):
        def value(x, combine, weights):
            y, dropped = compute(x, combine, weights)
            return jnp.sum(y * probe), (y, dropped)

        step = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True))
        (_, (y, dropped)), grads = step(x, combine, weights)
        return (y, grads), float(dropped)

    def spread(sizes, tokens, kernel, factor):
        mapping = {"batch": tokens, "experts": "expert", "mlp": "model"}
        mapping = {name: target for name, target in mapping.items() if name != "mlp" or "model" in sizes}

        def compute(x, combine, weights):
            with compute_sharding(mesh_of(sizes), mapping):
                return sharded_moe_mlp(
                    x, selected, combine, weights, batch=batch, implementation=kernel, capacity_factor=factor
                )

        return compute

    def plain(x, combine, weights):
        return dense(x, selected, combine, weights), 0.0

    expected, _ = run(plain, routing.weights_TK)
    report = {"values": {}, "drops": {}}
    for kernel in ("ragged", "blocked"):
        for name, (sizes, tokens) in LAYOUTS.items():
            found, dropped = run(spread(sizes, tokens, kernel, None), routing.weights_TK)
            assert dropped == 0
            report["values"][f"{kernel}, {name}"] = worst(found, expected)
        for data, expert in ((1, 8), (2, 4)):
            survivors = jnp.asarray(kept(np.asarray(selected), e, 0.75, data, expert))
            sizes = {"data": data, "expert": expert}
            tight = spread(sizes, ["data", "expert"], kernel, 0.75)
            clipped, _ = run(
                lambda x, c, w, keep=survivors: (plain(x, jnp.where(keep, c, 0), w)[0], 0.0), routing.weights_TK
            )
            found, dropped = run(tight, routing.weights_TK)
            lost = int((np.asarray(selected) < e).sum() - survivors.sum())
            report["drops"][f"{kernel}, {sizes}"] = [worst(found, clipped), dropped, lost]
    return report


def mixtral_report() -> float:
    config = MixtralConfig(
        max_seq_len=16,
        hidden_dim=16,
        intermediate_dim=24,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        n_routed_experts=8,
    )
    model = jax.jit(lambda key: config.build(Axis("vocab", 32), key=key))(jax.random.PRNGKey(1))
    ids = np.random.default_rng(0).integers(0, 32, (8, 16)).astype(np.int32)
    tokens = hax.named(ids, (Axis("batch", 8), Axis("position", 16)))
    example = LmExample.causal(tokens)

    def run(mesh, mapping, model):
        def step(model):
            with compute_sharding(mesh, mapping):
                loss, _ = next_token_loss(model, example, with_router_losses=True)
                return loss.result()

        return jax.jit(jax.value_and_grad(step))(model)

    mesh = mesh_of({"data": 2, "expert": 4})
    mapping = {"batch": ["data", "expert"], "experts": "expert"}
    spread = place(model, {"embed": "data", "experts": "expert"}, mesh)
    shard = spread.transformer.layers.stacked.mlp.up_proj.weight.array
    assert shard.sharding.shard_shape(shard.shape) == (1, 2, 8, 24)
    return worst(run(mesh, mapping, spread), run(None, {}, model))


GRUG = GrugMoeConfig(
    vocab_size=32,
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_experts=8,
    num_experts_per_tok=2,
    expert_dim=8,
    shared_dim=16,
    gate_rank=4,
    sliding_window=4,
    implementation="ragged",
)


def grug_report() -> dict:
    """Three steps on each layout against one device with the same router shards: losses, parameters, router biases."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 32, (8, 8)))
    valid = jnp.ones((8, 8), bool).at[:, 6:].set(False).at[0, 3:].set(False)
    batch = Batch(ids, valid.astype(jnp.float32), valid)

    def run(c: GrugMoeConfig, where: Mesh | None) -> tuple:
        state = initial_state(c, optimizer, jax.random.PRNGKey(0), where)
        step, seen = make_train_step(c, optimizer, mesh=where), []
        for _ in range(3):
            state, metrics = step(state, batch)
            copied = jax.tree.map(np.asarray, (state.params, state.router_bias))
            seen.append((np.asarray(metrics["train/loss"]), *copied))
        return seen, state

    def compare(left: list, right: list) -> list[float]:
        return [max(worst(a[part], b[part]) for a, b in zip(left, right, strict=True)) for part in range(3)]

    fixed = {shards: dataclasses.replace(GRUG, router_shards=shards) for shards in (1, 8)}
    alone = {shards: run(c, None)[0] for shards, c in fixed.items()}
    experts_and_data, state = run(GRUG, make_mesh(expert=4))
    up = state.params.layers[0].w_up
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.shape == up.shape]
    return {
        "data 2, expert 4": compare(experts_and_data, alone[8]),
        "expert 8": compare(run(GRUG, make_mesh(expert=8))[0], alone[8]),
        "one quantile, data 8": compare(run(fixed[1], make_mesh())[0], alone[1]),
        "shards matter": compare(alone[1], alone[8]),
        "shard": list(up.sharding.shard_shape(up.shape)),
        "moment": [list(m.sharding.shard_shape(m.shape)) for m in moments],
    }


def optimizer_report() -> dict:
    """Two steps of Muon from a gradient laid out over the mesh, against one device."""
    Embed, Mlp, Layers = Axis("embed", 16), Axis("mlp", 32), Axis("layers", 3)
    one = hnn.Linear.init(Embed, Mlp, key=jax.random.PRNGKey(2), use_bias=False, out_first=False)
    stacked = hax.random.normal(jax.random.PRNGKey(2), (Layers, Embed, Mlp))
    params = {"mlp": eqx.tree_at(lambda layer: layer.weight, one, stacked)}
    grads = optax.tree.random_like(jax.random.PRNGKey(3), params, jax.random.normal)
    mesh, mapping = mesh_of({"data": 8}), {"embed": "data"}
    report = {}
    for name in ("muon",):
        optimizer = OptimizerConfig.get_choice_class(name)(learning_rate=0.1, warmup=0).build(10)

        def step(grads, params, where, optimizer=optimizer):
            with compute_sharding(where, {"batch": "data"}):
                state = optimizer.init(params)
                for _ in range(2):
                    updates, state = optimizer.update(grads, state, params)
                return updates

        alone = jax.jit(lambda g, p, step=step: step(g, p, None))(grads, params)
        spread = jax.jit(lambda g, p, step=step: step(g, p, mesh))(
            place(grads, mapping, mesh), place(params, mapping, mesh)
        )
        report[name] = worst(spread, alone)
    return report


print(
    json.dumps(
        {"experts": experts_report(), "mixtral": mixtral_report(), "grug": grug_report(), "optim": optimizer_report()}
    )
)
