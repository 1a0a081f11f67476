"""What a step of every optimizer costs beside ``optax.adamw``, all interleaved in one run on the same gradients.

    python lib/levanter/benchmarks/bench_optimizers.py [--hidden 256] [--layers 4] [--rounds 9]

Our AdamW and optax's are first shown to give the same parameters. Cost is the median over rounds of the compiled update
and its application, state donated, no model; figures are ratios to optax's AdamW with a global-norm clip. Prints one
JSON line.
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
import optax
from haliax import Axis
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig, OptimizerConfig
from levanter.trainer_state import trainable

RATE = 1e-3


def compiled(optimizer, params):
    """A donated step and its first state."""
    optimizer = optax.with_extra_args_support(optimizer)
    objective = lambda p: sum(jnp.vdot(x, x) for x in jax.tree.leaves(p))  # noqa: E731

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params, loss=jnp.float32(1), obj_fn=objective)
        return optax.apply_updates(params, updates), state

    fresh = jax.tree.map(jnp.copy, params)
    return jax.jit(step, donate_argnums=(0, 1)), fresh, optimizer.init(params)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    config = LlamaConfig(
        max_seq_len=64,
        hidden_dim=args.hidden,
        intermediate_dim=4 * args.hidden,
        num_layers=args.layers,
        num_heads=4,
        num_kv_heads=4,
    )
    params = trainable(config.build(Axis("vocab", 4096), key=jax.random.PRNGKey(0)))
    grads = optax.tree.random_like(jax.random.PRNGKey(1), params, jax.random.normal)
    mask = AdamConfig().build_weight_decay_mask()
    rival = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(RATE, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1, mask=mask)
    )
    names = args.only or sorted(OptimizerConfig.get_known_choices())
    runs = {"optax.adamw": compiled(rival, params)}
    for name in names:
        fields = {"learning_rate": RATE, "warmup": 0, "lr_schedule": "constant"}
        runs[name] = compiled(OptimizerConfig.get_choice_class(name)(**fields).build(1000), params)
    for name, (step, p, state) in list(runs.items()):
        p, state = jax.block_until_ready(step(p, state, grads))
        runs[name] = (step, p, state)
    if "adam" in runs:
        pairs = zip(jax.tree.leaves(runs["adam"][1]), jax.tree.leaves(runs["optax.adamw"][1]), strict=True)
        assert all(np.allclose(a, b, rtol=0, atol=1e-7) for a, b in pairs), "our AdamW is not optax's"
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, (step, p, state) in list(runs.items()):
            started = time.perf_counter()
            p, state = jax.block_until_ready(step(p, state, grads))
            times[name].append(time.perf_counter() - started)
            runs[name] = (step, p, state)
    base = statistics.median(times["optax.adamw"])
    table = {name: round(statistics.median(values) / base, 3) for name, values in times.items()}
    slow = {
        name: round(max(values) / base, 1) for name, values in times.items() if name in ("soap", "sophia-h", "kron")
    }
    size = sum(x.size for x in jax.tree.leaves(params))
    print(
        json.dumps(
            {"parameters": size, "adamw_ms": round(base * 1e3, 2), "ratio_to_optax_adamw": table, "worst_step": slow}
        )
    )


if __name__ == "__main__":
    main()
