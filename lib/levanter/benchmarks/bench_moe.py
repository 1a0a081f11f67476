"""Dropless dispatch beside a dense loop over experts, forward and backward, interleaved in one run.

    python lib/levanter/benchmarks/bench_moe.py [--tokens 1024] [--experts 8] [--per-token 2]

The dense loop runs every expert on every token and masks: what one writes without a grouped kernel. ``ragged`` is
``jax.lax.ragged_dot``. Values and gradients are compared first (1e-5 of the largest value). Prints one JSON line.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from levanter.layers.moe import ExpertWeights, moe_mlp, route_top_k


def dense_loop(x, selected, weights, experts):
    """Every expert on every token, weighted by how much the token asked for it."""
    total = jnp.zeros_like(x)
    for e in range(experts.gate.shape[0]):
        out = (jax.nn.silu(x @ experts.gate[e]) * (x @ experts.up[e])) @ experts.down[e]
        total += out * jnp.sum(jnp.where(selected == e, weights, 0), axis=-1, keepdims=True)
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, default in (("tokens", 1024), ("per-token", 2), ("experts", 8), ("model", 256), ("width", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    shapes = ((a.experts, a.model, a.width), (a.experts, a.model, a.width), (a.experts, a.width, a.model))
    experts = ExpertWeights(*(0.05 * jax.random.normal(k, s) for k, s in zip(keys[:3], shapes, strict=True)))
    x, probe = (jax.random.normal(k, (a.tokens, a.model)) for k in keys[3:5])
    routing = route_top_k(2 * jax.random.normal(keys[5], (a.tokens, a.experts)), a.per_token, normalise=True)
    forms = {
        "dense_loop": dense_loop,
        "blocked": lambda *args: moe_mlp(*args, implementation="blocked"),
        "ragged": lambda *args: moe_mlp(*args, implementation="ragged"),
    }
    steps, outputs = {}, {}
    for name, form in forms.items():

        def loss(x, weights, experts, form=form):
            return jnp.sum(form(x, routing.selected_TK, weights, experts) * probe)

        steps[name] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
        outputs[name] = jax.block_until_ready(steps[name](x, routing.weights_TK, experts))
    for name in ("blocked", "ragged"):
        for got, want in zip(jax.tree.leaves(outputs[name]), jax.tree.leaves(outputs["dense_loop"]), strict=True):
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), name
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(a.rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            jax.block_until_ready(step(x, routing.weights_TK, experts))
            times[name].append(time.perf_counter() - started)
    ms = {name: round(1e3 * statistics.median(values), 2) for name, values in times.items()}
    print(json.dumps({**vars(a), "ms": ms, "dense_loop_over_blocked": round(ms["dense_loop"] / ms["blocked"], 2)}))


if __name__ == "__main__":
    main()
