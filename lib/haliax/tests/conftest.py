"""Fixtures: everything runs on CPU; tests that need several devices start a process of their own."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most tests compile many tiny programs once; optimising them costs more than running them.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")

import haliax as hax
import jax
import numpy as np
import pytest
from hypothesis import settings

# A busy machine is not a bug: examples may take their time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def axes():
    """Four axes of different sizes."""
    return hax.make_axes(B=2, H=3, W=4, D=5)


@pytest.fixture
def array(axes):
    """A float array over B, H, W, D with distinct elements."""
    shape = tuple(a.size for a in axes)
    return hax.named(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), axes)
