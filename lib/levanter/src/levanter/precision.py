"""Mixed-precision policies: which dtype parameters live in, computation runs in, and losses come out in.

A policy is written the way JMP users write it, ``p=f32,c=bfloat16``: parameters and optimizer state stay in float32,
the forward and backward pass runs in bfloat16. Losses and norms are float32 whatever the policy says.

References:
    Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from levanter.errors import ConfigError
from levanter.trainable import is_buffer

_ALIASES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "float": "float32",
    "half": "float16",
    "full": "float32",
}
_FIELDS = {
    "p": "params",
    "params": "params",
    "c": "compute",
    "compute": "compute",
    "o": "output",
    "output": "output",
}
_KNOWN = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Policy:
    """Dtypes of parameters, computation and outputs.

    Example:
        >>> Policy.parse("p=f32,c=bfloat16").compute
        'bfloat16'
        >>> str(Policy.parse("f32"))
        'params=float32,compute=float32,output=float32'
    """

    params: str = "float32"
    compute: str = "float32"
    output: str = "float32"

    def __str__(self) -> str:
        return f"params={self.params},compute={self.compute},output={self.output}"

    @staticmethod
    def parse(text: str) -> "Policy":
        """Parse ``f32``, or ``p=f32,c=bf16[,o=f32]``.

        A single dtype sets all three. In the long form an unset output follows compute, an unset compute follows
        params.

        Raises:
            ConfigError: an unknown field or dtype.
        """
        if "=" not in text:
            name = _dtype_name(text, text)
            return Policy(name, name, name)
        given: dict[str, str] = {}
        for part in text.split(","):
            key, _, value = part.strip().partition("=")
            if key not in _FIELDS:
                raise ConfigError(f"unknown precision field {key!r} in {text!r}; expected p, c or o.", key="mp")
            given[_FIELDS[key]] = _dtype_name(value, text)
        params = given.get("params", "float32")
        compute = given.get("compute", params)
        return Policy(params, compute, given.get("output", compute))

    def cast_to_compute(self, tree: Any) -> Any:
        """Cast every inexact array leaf of ``tree`` to the compute dtype."""
        return cast_floating(tree, self.compute)

    def cast_to_params(self, tree: Any) -> Any:
        """Cast every inexact array leaf of ``tree`` to the parameter dtype."""
        return cast_floating(tree, self.params)


def cast_floating(tree: Any, dtype: str) -> Any:
    """Cast floating array leaves to ``dtype``; leave buffers, integers, booleans, keys and non-arrays alone.

    Leaves that already have the dtype are returned as they are, so a float32 policy adds nothing to the program.
    """
    target = jnp.dtype(dtype)

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != target:
            return leaf.astype(target)
        return leaf

    return jax.tree.map(cast, tree, is_leaf=is_buffer)


def _dtype_name(text: str, whole: str) -> str:
    name = _ALIASES.get(text.strip(), text.strip())
    if name not in _KNOWN:
        raise ConfigError(f"unknown dtype {text!r} in {whole!r}; expected one of {', '.join(_KNOWN)}.", key="mp")
    return name
