"""A step's function by name, imported when it is called.

The problem: a file that only *plans* a training run should not pay for importing jax. The idea: the handle holds
``module:function``; the engine calls it in the process that runs the step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Deferred:
    """A function named ``module:function``.

    Attributes:
        target: Where the function lives.
    Example:
        >>> Deferred("math:sqrt")(9.0)
        3.0
    """

    target: str

    def __post_init__(self) -> None:
        module, separator, name = self.target.partition(":")
        if not (module and separator and name):
            raise ValueError(f"bad function name: target={self.target!r}; expected 'module:function'.")

    @property
    def __name__(self) -> str:
        return self.target.partition(":")[2]

    def load(self) -> Callable[[Any], Any]:
        """Import the module and take the function.

        Raises:
            ModuleNotFoundError: The room's extra is not installed.
            AttributeError: The module has no such function.
        """
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)

    def __call__(self, config: Any) -> Any:
        """Run it."""
        return self.load()(config)
