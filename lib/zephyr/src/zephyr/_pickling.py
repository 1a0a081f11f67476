"""Sending a plan to worker processes that may not be able to import where its functions come from."""

import importlib.util
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from zephyr.physical import Plan


def dump_plan(plan: Plan) -> bytes:
    """Pickle a plan; functions of modules that a fresh process could not import go by value."""
    return dump_value(plan)


def dump_value(value: Any) -> bytes:
    """Pickle any value, in the same way."""
    modules = {module for fn in _callables(value) if (module := _foreign(fn)) is not None}
    with _by_value(modules):
        buffer = io.BytesIO()
        cloudpickle.dump(value, buffer)
        return buffer.getvalue()


def _callables(value: Any) -> Iterator[Any]:
    if isinstance(value, partial):
        yield from _callables(value.func)
    elif isinstance(value, FunctionType | type):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            if not isinstance(item, str | int | float | dict):
                yield from _callables(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _callables(getattr(value, field.name))
    elif callable(value):
        yield type(value)


def _foreign(fn: Any) -> ModuleType | None:
    """The module of a callable, when its name alone would not lead another process to it."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return None
    try:
        spec = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError):
        return module
    found = None if spec is None else spec.origin
    here = getattr(module, "__file__", None)
    if here is None or (found == here and _reachable(module.__name__)):
        return None
    return module


def _reachable(name: str) -> bool:
    """Whether the import system finds the top of a dotted name on sys.path, not only among the loaded modules."""
    top = name.partition(".")[0]
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and find(top, None) is not None:
            return True
    return False


@contextmanager
def _by_value(modules: set[ModuleType]) -> Iterator[None]:
    added = []
    for module in modules:
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            added.append(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
