"""Mixtures of experts: dispatch against a loop, router losses against NumPy, grug, 8 devices against one."""

import json
import os
import pathlib

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data.text.examples import LmExample
from levanter.errors import ConfigError, HfCheckpointError
from levanter.grug.model import GrugMoeConfig, hidden_states, init, initial_bias
from levanter.grug.router import nth_largest, route
from levanter.grug.train import Batch, initial_state, make_train_step
from levanter.layers.expert_parallel import sharded_moe_mlp
from levanter.layers.moe import (
    ExpertWeights,
    load_balancing_loss,
    moe_mlp,
    plan_dispatch,
    route_top_k,
    router_z_loss,
    routing_statistics,
)
from levanter.models.loss import next_token_loss, next_token_nll
from levanter.models.mixtral import MixtralConfig
from levanter.models.qwen3_moe import Qwen3MoeConfig

WORKER = str(pathlib.Path(__file__).parent / "moe_worker.py")
T, K, E, D, INNER = 19, 2, 5, 6, 7


def make_experts(seed: int = 0) -> ExpertWeights:
    rng = np.random.default_rng(seed)
    shapes = ((E, D, INNER), (E, D, INNER), (E, INNER, D))
    return ExpertWeights(*(jnp.asarray(rng.normal(size=s), jnp.float32) * 0.4 for s in shapes))


def loop(x, selected, weights, experts):
    """Token by token, expert by expert, in plain JAX: the definition."""
    rows = []
    for t in range(x.shape[0]):
        row = jnp.zeros(x.shape[1])
        for j in range(selected.shape[1]):
            e = int(selected[t, j])
            if 0 <= e < experts.gate.shape[0]:
                hidden = jax.nn.silu(x[t] @ experts.gate[e]) * (x[t] @ experts.up[e])
                row = row + weights[t, j] * (hidden @ experts.down[e])
        rows.append(row)
    return jnp.stack(rows)


@pytest.mark.parametrize("implementation", ["ragged", "blocked"])
def test_dispatch_equals_the_loop_in_value_and_gradient(implementation):
    """Skewed choices, one expert never chosen, some tokens sent nowhere; 1e-5 relative."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    selected = np.minimum(rng.integers(0, E, (T, K)), 3)
    selected[:8] = 1
    selected[4] = (E, -1)
    weights, probe = jnp.asarray(rng.random((T, K)), jnp.float32), jnp.asarray(rng.normal(size=(T, D)), jnp.float32)

    def total(fn):
        return jax.value_and_grad(lambda x, w, ex: jnp.sum(fn(x, selected, w, ex) * probe), argnums=(0, 1, 2))

    expected = total(loop)(x, weights, make_experts())
    got = jax.jit(total(lambda x, s, w, ex: moe_mlp(x, jnp.asarray(s), w, ex, implementation=implementation)))(
        x, weights, make_experts()
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.abs(b).max()))
    assert not np.asarray(got[1][2].gate[4]).any()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=8, max_size=8), st.sampled_from([1, 4]), st.sampled_from([None, 3, 8]))
def test_a_dispatch_plan_places_every_assignment_once(chosen, block, capacity):
    plan = plan_dispatch(jnp.asarray(chosen, jnp.int32).reshape(4, 2), 3, block=block, capacity=capacity)
    rows, sources = np.asarray(plan.row_A), np.asarray(plan.source_R)
    local = [a for a, e in enumerate(chosen) if 0 <= e < 3]
    taken = [a for a in range(8) if rows[a] < len(sources)]
    assert len(taken) == min(len(local), capacity or 8) and set(taken) <= set(local)
    assert sorted(sources[sources < 8]) == taken and all(sources[rows[a]] == a for a in taken)
    owners = (
        np.repeat(np.asarray(plan.block_expert_N), block) if block > 1 else np.repeat(np.arange(3), plan.group_sizes_E)
    )
    assert all(owners[rows[a]] == chosen[a] for a in taken)
    assert int(plan.num_blocks) * block == int(plan.group_sizes_E.sum())


def test_router_losses_and_statistics_follow_numpy():
    z = np.random.default_rng(2).normal(size=(T, E)) * 2
    routing = route_top_k(jnp.asarray(z, jnp.float32), K, normalise=True)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    top = np.argsort(-p, axis=1)[:, :K]
    chosen = np.take_along_axis(p, top, 1)
    np.testing.assert_array_equal(routing.selected_TK, top)
    np.testing.assert_allclose(routing.weights_TK, chosen / chosen.sum(1, keepdims=True), rtol=1e-5)
    f = np.bincount(top.ravel(), minlength=E) / T
    assert float(load_balancing_loss(routing)) == pytest.approx(E * (f * p.mean(0)).sum(), rel=1e-5)
    assert float(router_z_loss(routing)) == pytest.approx((np.log(np.exp(z).sum(1)) ** 2).mean(), rel=1e-5)
    stats = routing_statistics(routing)
    assert float(stats["routing_entropy"]) == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-5)
    np.testing.assert_allclose(stats["expert_load"], f / K, rtol=1e-6)
    even = route_top_k(jnp.asarray(np.eye(4), jnp.float32), 1, normalise=True)
    assert float(load_balancing_loss(even)) == pytest.approx(1.0)


MIXTRAL = MixtralConfig(
    max_seq_len=16, hidden_dim=16, intermediate_dim=24, num_layers=2, num_heads=4, num_kv_heads=2, n_routed_experts=4
)


def test_router_losses_reach_training_and_nothing_else():
    model = jax.jit(lambda key: MIXTRAL.build(Axis("vocab", 32), key=key))(jax.random.PRNGKey(0))
    ids = np.random.default_rng(0).integers(0, 32, (2, 16)).astype(np.int32)
    example = LmExample.causal(hax.named(ids, (Axis("batch", 2), Axis("position", 16))))

    @jax.jit
    def everything(model):
        plain = next_token_nll(model, example).array
        return next_token_loss(model, example, with_router_losses=True), next_token_loss(model, example), plain

    (trained, metrics), (measured, _), nll = everything(model)
    plain = float(nll[:, :-1].mean())
    assert float(measured.result()) == pytest.approx(plain, rel=1e-5)
    extra = float(metrics["load_balancing_loss"].result() + metrics["router_z_loss"].result())
    assert extra > 0.01 and float(trained.result()) == pytest.approx(plain + extra, rel=1e-5)
    assert float(metrics["cross_entropy_loss"].result()) == pytest.approx(plain, rel=1e-5)
    loads = [float(metrics[f"moe/layer1/expert{e}_load"].result()) for e in range(4)]
    assert sum(loads) == pytest.approx(1.0, rel=1e-5)
    assert 0 < float(metrics["moe/layer0/routing_entropy"].result()) <= np.log(4) + 1e-5
    assert sum(x.size for x in jax.tree.leaves(model)) == MIXTRAL.total_trainable_params(32)


def test_shared_experts_are_seen_by_every_token():
    shared = MixtralConfig(
        max_seq_len=16,
        hidden_dim=16,
        intermediate_dim=24,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        n_routed_experts=4,
        n_shared_experts=2,
    )
    model = jax.jit(lambda key: shared.build(Axis("vocab", 32), key=key))(jax.random.PRNGKey(0))
    mlp = model.transformer.layers.layer(0).mlp
    assert mlp.shared_expert.up_proj.weight.array.shape == (16, 48)
    x = jax.random.normal(jax.random.PRNGKey(1), (1, 4, 16))
    spec = mlp.spec
    routed_only = type(mlp)(mlp.router, mlp.gate_proj, mlp.up_proj, mlp.down_proj, None, spec)
    both, routed, dense = jax.jit(lambda x: (mlp(x)[0], routed_only(x)[0], mlp.shared_expert(x)[0]))(x)
    np.testing.assert_allclose(both, routed + dense, rtol=1e-5, atol=1e-6)
    assert sum(a.size for a in jax.tree.leaves(model)) == shared.total_trainable_params(32)
    with pytest.raises(HfCheckpointError, match="n_shared_experts"):
        shared.to_hf_config(32)


def test_impossible_experts_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"experts per token=9, experts=8"):
        MixtralConfig(num_experts_per_tok=9)
    with pytest.raises(ConfigError, match=r"experts per token=0, experts=128"):
        Qwen3MoeConfig(num_experts_per_tok=0)
    with pytest.raises(ConfigError, match=r"num_experts_per_tok=8, num_experts=8"):
        GrugMoeConfig(num_experts=8, num_experts_per_tok=8)
    with pytest.raises(ConfigError, match="implementation='magic'"):
        MixtralConfig(moe_implementation="magic").block_spec()
    with pytest.raises(HfCheckpointError, match="mlp_only_layers=\\[3\\]"):
        Qwen3MoeConfig.from_hf_config({"mlp_only_layers": [3]})
    with pytest.raises(ConfigError, match="capacity_factor=0"):
        ids = jnp.zeros((4, 1), jnp.int32)
        sharded_moe_mlp(jnp.ones((4, D)), ids, jnp.ones((4, 1)), make_experts(), batch=4, capacity_factor=0)


def qb_oracle(z, bias, k, valid):
    """The router's definition, token by token in float64."""
    experts = z.shape[1]
    margins = np.full((len(z), experts), -np.inf)
    for t in np.flatnonzero(valid):
        order = np.argsort(-(z[t] + bias), kind="stable")
        margins[t] = z[t] - (z[t] + bias)[order[k]]
    place = valid.sum() * k // experts
    return np.sort(margins, axis=0)[::-1][place - 1]


def margins_like(rng):
    """Values of both signs and all sizes, with ties, zeros and the minus infinity of padding."""
    values = np.round(rng.normal(size=(2, 7, 5)) * 10.0 ** rng.integers(-30, 30, (2, 7, 5)), 31)
    values[0, :, 0], values[1, 2:5, 1], values[0, 3:, 2] = 0.25, -7.5, -np.inf
    return values


def test_the_quantile_router_follows_its_oracle_and_ignores_padding():
    rng = np.random.default_rng(4)
    z, bias = rng.normal(size=(24, 6)), rng.normal(size=6) * 0.3
    valid = np.ones(24, bool)
    valid[[3, 11]] = False
    routing = route(jnp.asarray(z, jnp.float32), jnp.asarray(bias, jnp.float32), 2, valid_T=jnp.asarray(valid))
    np.testing.assert_allclose(routing.beta_E, qb_oracle(z, bias, 2, valid), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.sort(routing.selected_TK[0]), np.sort(np.argsort(-(z[0] + bias))[:2]))
    np.testing.assert_allclose(routing.weights_TK.sum(1), np.where(valid, 2.5, 0.0), rtol=1e-6)
    assert (np.asarray(routing.selected_TK)[~valid] == 6).all()
    one = jnp.asarray(margins_like(rng), jnp.float32)
    order = np.sort(np.asarray(one), axis=1)[:, ::-1]
    for n in (1, 3, 7):
        np.testing.assert_array_equal(nth_largest(one, jnp.full(2, n)), order[:, n - 1])
    halves = route(jnp.asarray(z, jnp.float32), jnp.asarray(bias, jnp.float32), 2, shards=2)
    parts = [qb_oracle(z[s], bias, 2, np.ones(12, bool)) for s in (slice(0, 12), slice(12, 24))]
    np.testing.assert_allclose(halves.beta_E, np.mean(parts, axis=0), rtol=1e-5, atol=1e-6)


def test_quantile_balancing_evens_a_skewed_router_within_twenty_steps():
    rng = np.random.default_rng(5)
    z = jnp.asarray(rng.normal(size=(512, 8)) + np.linspace(0, 4, 8), jnp.float32)
    bias, ratios = jnp.zeros(8), []
    for _ in range(20):
        routing = route(z, bias, 2)
        counts = np.bincount(np.asarray(routing.selected_TK).ravel(), minlength=8)
        ratios.append(counts.max() / counts.mean())
        bias = -routing.beta_E
    assert ratios[0] > 2.5 and ratios[-1] < 1.1
    grad = jax.grad(lambda b: route(z, b, 2).weights_TK.sum())(bias)
    assert not np.asarray(grad).any()


GRUG = GrugMoeConfig(
    vocab_size=50,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    expert_dim=8,
    shared_dim=16,
    gate_rank=4,
    sliding_window=3,
)


def test_grug_learns_and_balances_its_experts():
    rng = np.random.default_rng(0)
    ids = jnp.asarray((np.arange(12)[None] * 3 + rng.integers(0, 50, (16, 1))) % 50)
    optimizer = optax.adam(5e-3)
    state, step = initial_state(GRUG, optimizer, jax.random.PRNGKey(0)), make_train_step(GRUG, optimizer)
    losses = []
    for _ in range(40):
        state, metrics = step(state, Batch(ids, jnp.ones((16, 12))))
        losses.append(float(metrics["train/loss"]))
    assert losses[-1] < 0.6 * losses[0]
    assert float(metrics["train/router/max_load_ratio"]) < 1.4 and float(metrics["moe/dropped_assignments"]) == 0
    assert state.router_bias.dtype == jnp.float32 and np.abs(np.asarray(state.router_bias)).max() > 0


def test_grug_sees_neither_the_future_nor_padding():
    rng = np.random.default_rng(1)
    ids = jnp.asarray(rng.integers(0, 50, (2, 8)))
    valid = jnp.ones((2, 8), bool).at[:, 5:].set(False)
    params, bias = jax.jit(lambda key: init(GRUG, key))(jax.random.PRNGKey(0)), initial_bias(GRUG)
    run = jax.jit(lambda ids: hidden_states(GRUG, params, bias, ids, valid_BP=valid))
    x, aux = run(ids)
    y, other = run(jnp.where(valid, ids, 7))
    np.testing.assert_array_equal(x[:, :5], y[:, :5])
    np.testing.assert_array_equal(aux["beta"], other["beta"])
    np.testing.assert_allclose(aux["expert_load"].sum(-1), 1.0, rtol=1e-6)
    changed, _ = run(ids.at[:, 4].add(1))
    np.testing.assert_array_equal(x[:, :4], changed[:, :4])
    assert np.abs(np.asarray(x - changed))[:, 4].max() > 1e-4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_devices_give_what_one_gives(run_python):
    """Float32 sums in another order: 2e-5 of the largest value; Newton–Schulz amplifies them to 1e-4."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = run_python(WORKER, env={"XLA_FLAGS": flags}, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["experts"]["values"]) == 6
    assert all(value < 1e-5 for value in report["experts"]["values"].values()), report["experts"]
    assert len(report["experts"]["drops"]) == 4
    for error, dropped, lost in report["experts"]["drops"].values():
        assert error < 1e-5 and dropped == lost > 0, report["experts"]
    assert report["mixtral"] < 2e-5
    grug = report["grug"]
    for layout in ("data 2, expert 4", "expert 8", "one quantile, data 8"):
        assert all(value < 1e-5 for value in grug[layout]), (layout, grug[layout])
    assert min(grug["shards matter"]) > 2e-5, "the cases above would pass whatever the shards were"
    assert grug["shard"] == [2, 8, 8] and grug["moment"]
    assert all(shard == [2, 8, 8] for shard in grug["moment"])
    assert report["optim"]["muon"] < 1e-4
