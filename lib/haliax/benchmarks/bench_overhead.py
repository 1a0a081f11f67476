"""What names cost: eager operations, tracing, dispatch and import, each beside the same work in raw jax.numpy.

Ours and raw runs are interleaved in one process; outputs are compared first. Times are CPU seconds of the calling
thread (what the overhead is made of, and steady on a busy machine), the best of several rounds; the ratio is of those
two, the spread that of the median to the best round (ours). Prints one JSON line.

    python lib/haliax/benchmarks/bench_overhead.py [--smoke]
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np

TARGETS = {
    "eager_add": 2.0,
    "eager_broadcast_add": 3.0,
    "trace_add": 1.3,
    "trace_mean_broadcast": 1.3,
    "trace_dot": 1.3,
    "named_jit_dispatch_50_linear": 2.0,
}


def seconds(fn, calls):
    start = time.thread_time()
    for _ in range(calls):
        fn()
    return (time.thread_time() - start) / calls


def versus(ours, raw, rounds, calls):
    """Interleave rounds of both; return microseconds (best), ratio and spread."""
    ours(), raw()
    a, b = [], []
    for _ in range(rounds):
        a.append(seconds(ours, calls))
        b.append(seconds(raw, calls))
    return {
        "ours_us": round(min(a) * 1e6, 2),
        "raw_us": round(min(b) * 1e6, 2),
        "ratio": round(min(a) / min(b), 2),
        "spread": round(statistics.median(a) / min(a), 2),
    }


def eager(rounds, calls):
    x, y, v = hax.ones({"a": 8, "b": 16}), hax.ones({"a": 8, "b": 16}), hax.ones({"a": 8})
    rx, ry, rv = x.array, y.array, v.array
    cases = {
        "eager_add": (lambda: x + y, lambda: rx + ry),
        "eager_broadcast_add": (lambda: x + v, lambda: rx + rv[:, None]),
        "eager_exp": (lambda: hax.exp(x), lambda: jnp.exp(rx)),
        "eager_sum": (lambda: x.sum("a"), lambda: rx.sum(0)),
        "eager_dot": (lambda: hax.dot(x, y, axis="b"), lambda: jnp.einsum("ab,ab->a", rx, ry)),
        "eager_index_int": (lambda: x["b", 3], lambda: rx[:, 3]),
        "eager_rearrange": (lambda: x.rearrange(("b", "a")), lambda: rx.transpose(1, 0)),
    }
    out = {}
    for name, (ours, raw) in cases.items():
        np.testing.assert_allclose(np.asarray(ours().array), np.asarray(raw()), rtol=1e-6)
        out[name] = versus(ours, raw, rounds, calls)
    return out


def chain(step, n):
    def fn(x):
        for _ in range(n):
            x = step(x)
        return x

    return fn


def tracing(rounds, n=100):
    x = hax.ones({"a": 8, "b": 16})
    w = hax.ones({"b": 16, "c": 16})
    rx, rw, rw2 = x.array, w.array, w.array.T

    def traced(step, arg):
        return lambda: jax.make_jaxpr(chain(step, n))(arg)

    def mm(y):
        return jax.lax.dot_general(y, rw, (((1,), (0,)), ((), ())))

    def there_and_back(y):
        return hax.dot(hax.dot(y, w, axis="b"), w, axis="c")

    cases = {
        "trace_add": (traced(lambda y: y + y, x), traced(lambda y: y + y, rx)),
        "trace_mean_broadcast": (
            traced(lambda y: y - y.mean("b"), x),
            traced(lambda y: y - jnp.mean(y, 1)[:, None], rx),
        ),
        "trace_dot": (traced(there_and_back, x), traced(lambda y: (y @ rw) @ rw2, rx)),
        "trace_dot_beside_einsum": (
            traced(there_and_back, x),
            traced(lambda y: jnp.einsum("ac,bc->ab", jnp.einsum("ab,bc->ac", y, rw), rw), rx),
        ),
        "trace_dot_beside_bare_lax": (traced(there_and_back, x), traced(lambda y: mm(mm(y)), rx)),
    }
    out = {}
    for name, (ours, raw) in cases.items():
        row = versus(ours, raw, rounds, 1)
        out[name] = {**row, "ours_us": round(row["ours_us"] / n, 2), "raw_us": round(row["raw_us"] / n, 2)}
    return out


class Model(eqx.Module):
    """Fifty layers whose parameters cross the jit boundary and are hardly used: dispatch is all there is to time."""

    layers: list

    def __call__(self, x):
        return x + self.layers[0].weight["e2", 0]


def dispatch(rounds, calls):
    E = hax.Axis("e", 4)
    key = jax.random.key(0)
    model = Model([hnn.Linear.init(E, E.alias("e2"), key=key) for _ in range(50)])
    leaves = [leaf for leaf in jax.tree.leaves(model)]
    x = hax.ones(E)

    def run(m, x):
        return m(x)

    def run_raw(arrays, x):
        return x + arrays[0][0]

    named, plain, flat, filtered = hax.named_jit(run), jax.jit(run), jax.jit(run_raw), eqx.filter_jit(run)
    np.testing.assert_allclose(named(model, x).array, flat(leaves, x.array))
    return {
        "named_jit_dispatch_50_linear": versus(lambda: named(model, x), lambda: plain(model, x), rounds, calls),
        "named_jit_beside_flat_list_of_100_arrays": versus(
            lambda: named(model, x), lambda: flat(leaves, x.array), rounds, calls
        ),
        "filter_jit_beside_jax_jit": versus(lambda: filtered(model, x), lambda: plain(model, x), rounds, calls),
    }


def unflatten(rounds, calls):
    x = hax.ones({"a": 8, "b": 16})
    leaves, treedef = jax.tree.flatten(x)
    best = min(seconds(lambda: jax.tree.unflatten(treedef, leaves), calls) for _ in range(rounds))
    return round(best * 1e6, 3)


def import_seconds(rounds):
    def run(code):
        program = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    both = [
        (run("import jax"), run("import haliax as h; h.NamedArray; h.nn.Linear"), run("import haliax"))
        for _ in range(rounds)
    ]
    jax_s, used, lazy = (min(c) for c in zip(*both, strict=True))
    return {
        "jax_s": round(jax_s, 3),
        "haliax_used_s": round(used, 3),
        "haliax_lazy_s": round(lazy, 3),
        "extra_s": round(used - jax_s, 3),
    }


def lock_hash():
    for parent in pathlib.Path(__file__).resolve().parents:
        if (parent / "uv.lock").exists():
            return hashlib.sha256((parent / "uv.lock").read_bytes()).hexdigest()[:16]
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    rounds, calls = (3, 100) if smoke else (15, 1000)
    cases = (
        eager(rounds, calls) | tracing(2 if smoke else 7, 20 if smoke else 100) | dispatch(rounds, 20 if smoke else 200)
    )
    met = {name: cases[name]["ratio"] <= limit for name, limit in TARGETS.items()}
    unflatten_us = unflatten(rounds, calls)
    report = {
        "name": "haliax_overhead",
        "value": cases["eager_add"]["ratio"],
        "unit": "times raw jax.numpy (eager add)",
        "spread": cases["eager_add"]["spread"],
        "n": rounds,
        "machine": f"{platform.machine()} {os.cpu_count()} cpus",
        "lock_hash": lock_hash(),
        "rival_version": f"jax {jax.__version__}",
        "equinox": importlib.metadata.version("equinox"),
        "cases": cases,
        "unflatten_us": unflatten_us,
        "targets": {k: {"limit": v, "met": met[k]} for k, v in TARGETS.items()}
        | {"unflatten_us": {"limit": 1.0, "met": unflatten_us <= 1}},
    }
    if not smoke:
        report["import"] = import_seconds(5)
        report["targets"]["import_extra_s"] = {"limit": 0.25, "met": report["import"]["extra_s"] <= 0.25}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
