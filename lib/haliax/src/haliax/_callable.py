"""Modules that are also functions: ``hax.fft(x)`` and ``hax.fft.rfft(x)`` are both right.

Python binds a submodule to its package's attribute the moment it is imported. Where a function of the same name is
promised, the module itself answers calls, so it does not matter who was imported first.
"""

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any


def callable_module(name: str, fn: Callable[..., Any]) -> None:
    """Let calls of the module ``name`` go to ``fn``."""

    class CallableModule(types.ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

    CallableModule.__call__.__doc__ = fn.__doc__
    module: Any = sys.modules[name]
    module.__class__ = CallableModule
    module.__signature__ = inspect.signature(fn)
