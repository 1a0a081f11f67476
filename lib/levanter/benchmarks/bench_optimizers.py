"""What a step of every optimizer costs beside ``optax.adamw``, all interleaved in one run on the same gradients.

    python lib/levanter/benchmarks/bench_optimizers.py [--hidden 256] [--layers 4] [--rounds 20] [--only muon soap ...]

Our AdamW and optax's are first shown to give the same parameters. Cost is processor time of the compiled update and its
application, state donated, no model, as a ratio to optax's AdamW with a global-norm clip: the median step, and the mean
over whole periods, which is what SOAP (a refresh every 10 steps) and Sophia (an estimate every 10) cost a run. State is
bytes per parameter. Newton-Schulz is timed on a stack of 4:1 matrices in both forms and beside optax's, with the
distance of each from a float64 oracle. Prints one JSON line.
"""

import argparse
import json
import os
import platform
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from haliax import Axis
from levanter.models.llama import LlamaConfig
from levanter.optim import newton_schulz as ns
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
    # Constants that an optimizer shares between leaves (zeros) must be arrays of their own to be donated.
    state = jax.tree.map(jnp.copy, optimizer.init(params))
    return jax.jit(step, donate_argnums=(0, 1)), fresh, state


def interleaved(runs, rounds):
    """Processor seconds of every run, round by round; ``runs[name]()`` does one step and waits for it."""
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.process_time()
            run()
            times[name].append(time.process_time() - started)
    return times


class Run:
    """An optimizer and where it is."""

    def __init__(self, optimizer, params, grads):
        self.step, self.params, self.state = compiled(optimizer, params)
        self.grads = grads
        self()  # compiles; SOAP and Sophia do their first, dearest, step

    def __call__(self):
        self.params, self.state = jax.block_until_ready(self.step(self.params, self.state, self.grads))

    def state_bytes(self):
        """Bytes of the state, hyper-parameters included."""
        return sum(x.nbytes for x in jax.tree.leaves(self.state))


def newton_schulz_cost(hidden, layers, rounds):
    """Both forms and optax's on ``[layers, hidden, 4 hidden]``, ratios to the direct form, and errors."""
    x = jax.random.normal(jax.random.PRNGKey(2), (layers, hidden, 4 * hidden))
    simple = jnp.asarray(ns.COEFFICIENTS["simple"][0])
    theirs = optax.contrib._muon.orthogonalize_via_newton_schulz
    forms = {
        "direct": lambda x: ns.newton_schulz(x, coefficients="simple", form="direct"),
        "gram": lambda x: ns.newton_schulz(x, coefficients="simple", form="gram"),
        "optax": jax.vmap(lambda m: theirs(m, simple, 5, eps=1e-8)),
    }
    oracle = np.asarray(x, np.float64)
    oracle /= np.linalg.norm(oracle, axis=(1, 2), keepdims=True)
    for _ in range(5):
        a, b, c = ns.COEFFICIENTS["simple"][0]
        gram = oracle @ oracle.swapaxes(1, 2)
        oracle = a * oracle + (b * gram + c * gram @ gram) @ oracle
    jitted = {name: jax.jit(fn) for name, fn in forms.items()}
    errors = {name: float(f"{np.linalg.norm(np.asarray(f(x)) - oracle):.2g}") for name, f in jitted.items()}
    times = interleaved({n: lambda f=f: jax.block_until_ready(f(x)) for n, f in jitted.items()}, rounds)
    base = statistics.median(times["direct"])
    ratios = {name: round(statistics.median(values) / base, 3) for name, values in times.items()}
    return {"shape": list(x.shape), "ratio_to_direct": ratios, "distance_from_float64": errors}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
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
    runs = {"optax.adamw": Run(rival, params, grads)}
    for name in names:
        fields = {"learning_rate": RATE, "warmup": 0, "lr_schedule": "constant"}
        runs[name] = Run(OptimizerConfig.get_choice_class(name)(**fields).build(1000), params, grads)
    if "adam" in runs:
        pairs = zip(jax.tree.leaves(runs["adam"].params), jax.tree.leaves(runs["optax.adamw"].params), strict=True)
        assert all(np.allclose(a, b, rtol=0, atol=1e-7) for a, b in pairs), "our AdamW is not optax's"
    if "muon" in runs:
        automatic, ns.GRAM_RATIO = ns.GRAM_RATIO, float("inf")  # traced while it says so
        runs["muon, direct form"] = Run(OptimizerConfig.get_choice_class("muon")(**fields).build(1000), params, grads)
        ns.GRAM_RATIO = automatic
    size = sum(x.size for x in jax.tree.leaves(params))
    times = interleaved(runs, args.rounds)
    base = statistics.median(times["optax.adamw"])
    table = {
        name: {
            "median": round(statistics.median(values) / base, 2),
            "mean": round(statistics.mean(values) / base, 2),
            "state_bytes_per_parameter": round(runs[name].state_bytes() / size, 2),
        }
        for name, values in times.items()
    }
    print(
        json.dumps(
            {
                "parameters": size,
                "adamw_cpu_ms": round(base * 1e3, 2),
                "beside_optax_adamw": table,
                "newton_schulz": newton_schulz_cost(args.hidden, args.layers, args.rounds),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            }
        )
    )


if __name__ == "__main__":
    main()
