"""What every test of the training side shares: a tiny model, tiny data, fresh processes."""

import os
import pathlib
import subprocess
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile hundreds of small programs and run each once: plain code compiles three times faster.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import haliax as hax
import jax
import numpy as np
import pytest
from haliax import Axis
from hypothesis import settings
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.examples import LmExample
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel

# The first call of a property compiles; its time says nothing about the code.
settings.register_profile("levanter", deadline=None)
settings.load_profile("levanter")

TESTS = pathlib.Path(__file__).parent
VOCAB = 50


def make_examples(count: int, length: int = 16, seed: int = 0) -> list[LmExample]:
    """Arithmetic sequences modulo the vocabulary: learnable in a few steps."""
    rng = np.random.default_rng(seed)
    Pos = Axis("position", length)
    rows = [(np.arange(length) * 3 + rng.integers(0, VOCAB)) % VOCAB for _ in range(count)]
    return [LmExample.causal(hax.named(row.astype(np.int32), Pos)) for row in rows]


@pytest.fixture(scope="session")
def tiny_config() -> LlamaConfig:
    return LlamaConfig(max_seq_len=128, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=2)


@pytest.fixture(scope="session")
def tiny_model(tiny_config) -> LlamaLMHeadModel:
    return LlamaLMHeadModel.init(Axis("vocab", VOCAB), tiny_config, key=jax.random.PRNGKey(0))


@pytest.fixture(scope="session")
def examples():
    return make_examples(64)


@pytest.fixture(scope="session")
def dataset(examples):
    return ListAsyncDataset(examples)


@pytest.fixture(scope="session")
def token_batch():
    """Int32 tokens with axes (batch 3, position 16)."""
    ids = np.random.default_rng(1).integers(0, VOCAB, (3, 16)).astype(np.int32)
    return hax.named(ids, (Axis("batch", 3), Axis("position", 16)))


@pytest.fixture(scope="session")
def run_python():
    """Run code in a fresh interpreter; returns the completed process."""

    def run(*args: str, env: dict[str, str] | None = None, timeout: float = 110) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "MARIN_PROGRESS": "0", **(env or {})},
        )

    return run
