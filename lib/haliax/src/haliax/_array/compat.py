"""The one place that touches JAX interfaces without a stability promise.

Everything else in haliax uses documented JAX names only. Two questions have no public answer: whether a trace is in
progress when there is no argument to look at, and which mesh a legacy ``with Mesh(...)`` block has set.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax

try:
    from jax._src.mesh import thread_resources as _thread_resources
except ImportError:  # a JAX without the legacy mesh context
    _thread_resources = None


@functools.cache
def _under_a_jit() -> Callable[[], bool]:
    # jax.extend is a tenth of this package's import budget and only sharding asks the question.
    return import_module("jax.extend.core").unsafe_am_i_under_a_jit_DO_NOT_USE


def is_tracing() -> bool:
    """Tell whether the caller is being traced by `jax.jit`. Allocates nothing."""
    return bool(_under_a_jit()())


def legacy_context_mesh() -> Any:
    """Return the mesh of an enclosing ``with Mesh(...)`` block, or None."""
    if _thread_resources is None:
        return None
    mesh = _thread_resources.env.physical_mesh
    return None if mesh.empty else mesh


Tracer = jax.core.Tracer
