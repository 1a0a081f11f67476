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
    "stacked_trace_and_lower": 1.15,
    "stacked_program_lines": 1.15,
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


BATCH, POS, EMBED, HEADS, HEAD, MLP, LAYER = hax.make_axes(batch=2, pos=8, embed=16, heads=4, head=4, mlp=32, layer=24)


class Block(eqx.Module):
    """A transformer block: what `Stacked` is used for."""

    norm: hnn.RmsNorm
    qkv: hnn.Linear
    out: hnn.Linear
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key):
        k = jax.random.split(key, 4)

        def linear(i, o, key):
            return hnn.Linear.init(i, o, key=key, use_bias=False)

        three = hax.Axis("three", 3)
        return Block(
            hnn.RmsNorm.init(EMBED, use_bias=False),
            linear(EMBED, (three, HEADS, HEAD), k[0]),
            linear((HEADS, HEAD), EMBED, k[1]),
            linear(EMBED, MLP, k[2]),
            linear(MLP, EMBED, k[3]),
        )

    def __call__(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).unbind("three")
        k, v = k.rename({"pos": "kpos"}), v.rename({"pos": "kpos"})
        x = x + self.out(hnn.dot_product_attention("kpos", "head", q, k, v, mask=mask))
        return x + self.down(hnn.silu(self.up(self.norm(x))))


def by_hand(params, x_BPE):
    """The same stack in jnp: B batch, P pos, E embed, H heads, D head."""
    mask_PK = jnp.arange(8)[:, None] >= jnp.arange(8)
    mm = jax.lax.dot_general

    def rms(x, w):
        return w * (x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=2, keepdims=True) + 1e-5))

    def block(x, p):
        norm_E, qkv_3HDE, out_EHD, up_ME, down_EM = p
        y = mm(rms(x, norm_E), qkv_3HDE, (((2,), (3,)), ((), ())))
        q, k, v = (y[:, :, i] for i in range(3))
        s_BHPK = mm(q * 0.5, k, (((3,), (3,)), ((0, 2), (0, 2))))
        a_BHPK = jax.nn.softmax(jnp.where(mask_PK, s_BHPK, -1e9), axis=3)
        o_BPHD = mm(a_BHPK, v, (((3,), (1,)), ((0, 1), (0, 2)))).transpose(0, 2, 1, 3)
        x = x + mm(o_BPHD, out_EHD, (((2, 3), (1, 2)), ((), ())))
        h = jax.nn.silu(mm(rms(x, norm_E), up_ME, (((2,), (1,)), ((), ()))))
        return x + mm(h, down_EM, (((2,), (1,)), ((), ()))), None

    return jnp.mean(jax.lax.scan(block, x_BPE, params)[0] ** 2)


def stacked(rounds):
    """Trace and lower value_and_grad of 24 stacked blocks, beside the scan one would write by hand."""
    stack = hnn.Stacked.init(LAYER, Block)(key=jax.random.split(jax.random.key(0), LAYER.size))
    x = hax.random.normal(jax.random.key(1), (BATCH, POS, EMBED))
    inner = stack.stacked
    params = [m.weight.array for m in (inner.norm, inner.qkv, inner.out, inner.up, inner.down)]

    def named(stack, x):
        return hax.mean(stack.fold(x, hnn.causal_mask(POS, POS.alias("kpos"))) ** 2).scalar()

    def ours():
        return jax.jit(jax.value_and_grad(lambda s, x: named(s, x))).lower(stack, x)

    def theirs():
        return jax.jit(jax.value_and_grad(lambda p, x: by_hand(p, x))).lower(params, x.array)

    np.testing.assert_allclose(ours().compile()(stack, x)[0], theirs().compile()(params, x.array)[0], rtol=1e-4)
    lines = [len(lowered.as_text().splitlines()) for lowered in (ours(), theirs())]
    size = {"ours_us": lines[0], "raw_us": lines[1], "ratio": round(lines[0] / lines[1], 2), "spread": 1.0}
    return {"stacked_trace_and_lower": versus(ours, theirs, rounds, 1), "stacked_program_lines": size}


def unflatten(rounds, calls):
    x = hax.ones({"a": 8, "b": 16})
    leaves, treedef = jax.tree.flatten(x)
    best = min(seconds(lambda: jax.tree.unflatten(treedef, leaves), calls) for _ in range(rounds))
    return round(best * 1e6, 3)


def import_seconds(rounds):
    """CPU seconds of the first thread in fresh processes: jax, then the bare import, then a first layer."""
    program = """
import time
marks = [time.thread_time()]
import jax; marks.append(time.thread_time())
import haliax; marks.append(time.thread_time())
import equinox; marks.append(time.thread_time())
haliax.nn.Linear; marks.append(time.thread_time())
print(*(b - a for a, b in zip(marks, marks[1:])))
"""
    runs = [
        [float(t) for t in subprocess.check_output([sys.executable, "-c", program], text=True).split()]
        for _ in range(rounds)
    ]
    jax_s, bare, equinox, layer = (min(column) for column in zip(*runs, strict=True))
    return {
        "jax_s": round(jax_s, 3),
        "import_haliax_s": round(bare, 3),
        "equinox_s": round(equinox, 3),
        "first_layer_s": round(layer, 3),
        "extra_s": round(bare, 3),
        "extra_with_layers_s": round(bare + equinox + layer, 3),
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
        eager(rounds, calls)
        | tracing(2 if smoke else 7, 20 if smoke else 100)
        | dispatch(rounds, 20 if smoke else 200)
        | stacked(2 if smoke else 7)
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
