"""Our optimizers beside the implementations that others published, in float64 on the same gradients.

    uv venv /tmp/refs && uv pip install --python /tmp/refs torch pytorch_optimizer==3.8.0 -e lib/levanter
    /tmp/refs/bin/python lib/levanter/benchmarks/optimizer_references.py

The oracles of the tests are ours; this says whether they share a mistake with nobody. Prints one JSON line: the largest
difference after 20 steps over the largest movement, by optimizer; fails above 1e-6 (bfloat16 references: 0.05). The
references that compute parts in float32 are made to use float64, and SOAP's count of
steps is that of the authors' code.
"""

import json
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
import optax.contrib
import pytorch_optimizer
import torch
from levanter.optim.config import OptimizerConfig
from pytorch_optimizer.optimizer import psgd

jax.config.update("jax_enable_x64", True)
torch.float32 = torch.float64  # what SOAP and Kron cast their factorisations to
STEPS, RATE = 20, 1e-2
RNG = np.random.default_rng(0)
START = RNG.normal(size=(6, 6))
GRADS = RNG.normal(size=(STEPS, 6, 6))


def ours(name, **fields):
    """Our run on one matrix, without schedule, decay and clip."""
    plain = {"warmup": 0, "lr_schedule": "constant", "weight_decay": 0.0, "max_grad_norm": None}
    config = OptimizerConfig.get_choice_class(name)(learning_rate=RATE, **{**plain, **fields})
    return follow(config.build(STEPS))


def follow(optimizer):
    """Any optax transform on the same matrix."""
    params = {"w": jax.numpy.asarray(START)}
    state = optimizer.init(params)
    for grad in GRADS:
        updates, state = optimizer.update({"w": jax.numpy.asarray(grad)}, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


def torch_run(make, *, transpose=False):
    """A torch optimizer on the same matrix; ``transpose`` for those that read it as (out, in)."""
    turn = (lambda x: x.T.copy()) if transpose else (lambda x: x.copy())
    p = torch.nn.Parameter(torch.tensor(turn(START)))
    optimizer = make([p])
    for grad in GRADS:
        p.grad = torch.tensor(turn(grad))
        optimizer.step()
    return turn(p.detach().numpy())


def soap_as_published():
    """pytorch_optimizer counts the skipped first step; the authors' code does not."""

    class Soap(pytorch_optimizer.SOAP):
        """The authors' count."""

        debias = staticmethod(lambda beta, step: 1 - beta ** (step - 1))

        def update_pre_conditioner(self, grad, state, step, **rest):
            super().update_pre_conditioner(grad, state, step=step - 1, **rest)

    # One step of size eps: the authors add it before the bias correction, the paper and we after.
    return torch_run(lambda p: Soap(p, lr=RATE, betas=(0.95, 0.95), eps=0, precondition_frequency=3, weight_decay=0))


def kron_with_our_probes():
    """The reference draws its probes from torch; give it those that our key gives."""
    keys, key = [], jax.random.PRNGKey(0)
    for _ in range(STEPS):
        key, probe = jax.random.split(key)
        keys.append(jax.random.split(probe, 1)[0])
    draws = iter(torch.tensor(np.asarray(jax.random.normal(k, (1, 6, 6), np.float64))[0]) for k in keys)
    psgd.torch.randn_like = lambda like, dtype=None: next(draws)
    fields = {"weight_decay": 0, "pre_conditioner_update_probability": 1.0, "precondition_dtype": torch.float64}
    return torch_run(lambda p: pytorch_optimizer.Kron(p, lr=RATE, balance_prob=0.0, **fields))


def main():
    """Compare and print."""
    simple = (3.4445, -4.7750, 2.0315)
    pairs = {
        "adam, torch.optim.AdamW": (
            ours("adam"),
            torch_run(lambda p: torch.optim.AdamW(p, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)),
        ),
        "lion, pytorch_optimizer.Lion": (
            ours("lion"),
            torch_run(lambda p: pytorch_optimizer.Lion(p, lr=RATE, betas=(0.9, 0.95), weight_decay=0)),
        ),
        "mars, pytorch_optimizer.MARS": (
            ours("mars", max_grad_norm=1.0, epsilon=1e-15),
            torch_run(lambda p: pytorch_optimizer.MARS(p, lr=RATE, betas=(0.95, 0.99), weight_decay=0, eps=1e-15)),
        ),
        "muon, optax.contrib.muon": (
            ours("muon", coefficient_type="simple", nesterov=False),  # optax corrects the bias inside its look-ahead
            follow(optax.contrib.muon(RATE, ns_coeffs=simple, beta=0.95, nesterov=False)),
        ),
        "muon, torch.optim.Muon (bfloat16)": (
            ours("muon", coefficient_type="simple"),
            torch_run(lambda p: torch.optim.Muon(p, lr=RATE, momentum=0.95, weight_decay=0), transpose=True),
        ),
        "soap, pytorch_optimizer.SOAP": (ours("soap", precondition_frequency=3), soap_as_published()),
        "kron, pytorch_optimizer.Kron": (ours("kron"), kron_with_our_probes()),
    }
    found = {name: float(np.abs(a - b).max() / np.abs(b - START).max()) for name, (a, b) in pairs.items()}
    print(json.dumps({name: float(f"{value:.2g}") for name, value in found.items()}))
    bad = [n for n, value in found.items() if not value <= (0.05 if "bfloat16" in n else 1e-6)]
    if bad:
        raise SystemExit(f"different: {', '.join(bad)}")


if __name__ == "__main__":
    main()
