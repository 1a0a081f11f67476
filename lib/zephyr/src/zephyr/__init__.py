"""Lazy, sharded, columnar data processing with exactly-once output.

Describe work with `Dataset`, run it with `ZephyrContext`. Names below are loaded on first use, so that importing
zephyr costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephyr import counters as counters
    from zephyr._quarantine import Quarantine as Quarantine
    from zephyr.context import ZephyrContext as ZephyrContext
    from zephyr.context import ZephyrExecutionResult as ZephyrExecutionResult
    from zephyr.coordinator import Policy as Policy
    from zephyr.dataset import Dataset as Dataset
    from zephyr.dataset import ShardInfo as ShardInfo
    from zephyr.errors import BadRecordError as BadRecordError
    from zephyr.errors import ZephyrError as ZephyrError
    from zephyr.expr import Expr as Expr
    from zephyr.expr import col as col
    from zephyr.expr import lit as lit
    from zephyr.plan import compute_plan as compute_plan
    from zephyr.readers import load_zip_members as load_zip_members

_HOMES = {
    "BadRecordError": "zephyr.errors",
    "Dataset": "zephyr.dataset",
    "Expr": "zephyr.expr",
    "Policy": "zephyr.coordinator",
    "Quarantine": "zephyr._quarantine",
    "ShardInfo": "zephyr.dataset",
    "ZephyrContext": "zephyr.context",
    "ZephyrError": "zephyr.errors",
    "ZephyrExecutionResult": "zephyr.context",
    "col": "zephyr.expr",
    "compute_plan": "zephyr.plan",
    "counters": "zephyr.counters",
    "lit": "zephyr.expr",
    "load_zip_members": "zephyr.readers",
}

__all__ = [
    "BadRecordError",
    "Dataset",
    "Expr",
    "Policy",
    "Quarantine",
    "ShardInfo",
    "ZephyrContext",
    "ZephyrError",
    "ZephyrExecutionResult",
    "col",
    "compute_plan",
    "counters",
    "lit",
    "load_zip_members",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'zephyr' has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"zephyr.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
