"""What a scan keeps for its backward pass.

Reverse-mode differentiation of a loop stores something per iteration: everything the body computed (fast, large), only
the carry (the body is run again), or named values in between. `ScanCheckpointPolicy` says which, by name:
``scan(<axis>)__carry``, ``scan(<axis>)__input``, whatever the body tags with `jax.ad_checkpoint.checkpoint_name`, and
the outputs of matrix multiplications.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
from jax.ad_checkpoint import checkpoint_name

from haliax.errors import ScanError


def tree_checkpoint_name(x: Any, name: str) -> Any:
    """Tag every array of a tree for checkpoint policies."""
    return jax.tree_util.tree_map(lambda leaf: checkpoint_name(leaf, name) if eqx.is_array(leaf) else leaf, x)


@dataclasses.dataclass(frozen=True)
class ScanCheckpointPolicy:
    """What the backward pass of a scan finds saved, and what it computes again.

    Attributes:
        save_carries: Keep the carry of each iteration: True, False, or "offload" to host memory.
        save_inputs: Keep the scanned inputs of each iteration, likewise.
        save_block_internals: Keep what the body computes: all (True), nothing (False), or these names.
        offload_block_internals: Names that are kept in host memory.
        prevent_cse: Passed to `jax.checkpoint`; needed outside of loops only.
        disable: No checkpointing: JAX keeps everything.
        simple: Plain `jax.checkpoint` around the body: keeps carries and inputs.
        nested: Two-level loop that keeps O(sqrt n) carries: True, or the number of outer iterations.
        save_dots: Keep the results of matrix multiplications without batch dimensions (the projections of a
            transformer block) and compute the rest again: most of the speed of saving everything for a part of the
            memory.

    Example:
        >>> ScanCheckpointPolicy.from_bool_or_str("recompute").save_carries
        False
    """

    save_carries: bool | Literal["offload"] = True
    save_inputs: bool | Literal["offload"] = False
    save_block_internals: bool | Sequence[str] = False
    offload_block_internals: Sequence[str] = ()
    prevent_cse: bool = False
    disable: bool = False
    simple: bool = False
    nested: bool | int = False
    save_dots: bool = False

    @staticmethod
    def from_bool_or_str(remat_policy: "bool | str") -> "ScanCheckpointPolicy":
        """Return the policy that a short form stands for.

        True: simple; False: keep everything; "offload": carries and inputs in host memory; "recompute", "full": keep
        nothing; "save_all": keep everything; "save_dots": keep carries and matrix products; "nested": two-level loop.

        Raises:
            ScanError: Another value.
        """
        if remat_policy is True:
            return ScanCheckpointPolicy(simple=True)
        if remat_policy is False:
            return ScanCheckpointPolicy(disable=True, save_inputs=True, save_block_internals=True)
        table = {
            "offload": ScanCheckpointPolicy(save_carries="offload", save_inputs="offload"),
            "recompute": ScanCheckpointPolicy(save_carries=False),
            "full": ScanCheckpointPolicy(save_carries=False),
            "save_all": ScanCheckpointPolicy(save_inputs=True, save_block_internals=True),
            "save_dots": ScanCheckpointPolicy(save_dots=True),
            "nested": ScanCheckpointPolicy(nested=True),
        }
        if remat_policy not in table:
            raise ScanError(f"checkpoint policy: {remat_policy!r}; expected a bool or one of {', '.join(table)}.")
        return table[remat_policy]

    @staticmethod
    def make(spec: "ScanCheckpointSpec") -> "ScanCheckpointPolicy":
        """Return ``spec`` as a policy."""
        return spec if isinstance(spec, ScanCheckpointPolicy) else ScanCheckpointPolicy.from_bool_or_str(spec)

    _mk = make

    @property
    def uses_names(self) -> bool:
        """Whether carries and inputs must be tagged for this policy to tell them apart."""
        return not (self.disable or self.simple)

    def checkpoint(self, carry_name: str, input_name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the body of a loop according to this policy."""
        if self.disable:
            return fn
        if self.simple:
            return eqx.filter_checkpoint(fn, prevent_cse=self.prevent_cse)
        policy = self._to_jax_policy(carry_name, input_name)
        return eqx.filter_checkpoint(fn, policy=policy, prevent_cse=self.prevent_cse)

    def _to_jax_policy(self, carry_name: str, input_name: str) -> Any:
        save: list[str] = []
        offload: list[str] = list(self.offload_block_internals)
        drop: list[str] = []
        for what, name in ((self.save_carries, carry_name), (self.save_inputs, input_name)):
            (offload if what == "offload" else save if what else drop).append(name)
        policies = jax.checkpoint_policies
        if self.save_block_internals is True:
            if offload:
                raise ScanError(
                    f"checkpoint policy: cannot offload {offload} and keep all block internals; expected one of them. "
                    "Name the internals to keep."
                )
            policy = policies.save_anything_except_these_names(*drop)
        else:
            if self.save_block_internals:
                save.extend(self.save_block_internals)
            if offload:
                policy = policies.save_and_offload_only_these_names(
                    names_which_can_be_saved=save,
                    names_which_can_be_offloaded=offload,
                    offload_src="device",
                    offload_dst="pinned_host",
                )
            else:
                policy = policies.save_only_these_names(*save)
        if self.save_dots:
            policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, policy)
        return policy


ScanCheckpointSpec = (
    ScanCheckpointPolicy | bool | Literal["offload", "recompute", "full", "save_all", "save_dots", "nested"]
)


def nested_length(length: int, nested: bool | int) -> int:
    """Return the number of outer iterations: the largest divisor up to sqrt(length), or the number given.

    Raises:
        ScanError: The number given does not divide the length.
    """
    if nested is not True:
        if nested < 1 or length % nested:
            raise ScanError(f"checkpoint policy: nested={nested} does not divide the length {length} of the loop.")
        return int(nested)
    outer = max(1, int(length**0.5))
    while length % outer:
        outer -= 1
    return outer


def multilevel_scan(
    f: Any, carry: Any, xs: Any, outer_size: int, length: int, reverse: bool = False, unroll: int | bool = 1
) -> tuple[Any, Any]:
    """Scan in two levels so that only ``outer_size`` carries are kept (plus one inner loop while going back).

    Args:
        f: Body as for `jax.lax.scan`.
        carry: Initial carry.
        xs: Inputs with leading dimension ``length``.
        outer_size: Outer iterations; must divide ``length``.
        length: Number of iterations in all.
        reverse: Run from the end.
        unroll: Unrolling of the inner loop.

    Raises:
        ScanError: ``outer_size`` does not divide ``length``.

    Example:
        >>> import jax.numpy as jnp
        >>> multilevel_scan(lambda c, x: (c + x, c), 0, jnp.arange(4), outer_size=2, length=4)[0].item()
        6
    """
    inner = length // outer_size
    if length % outer_size:
        raise ScanError(f"multilevel_scan: outer_size={outer_size} does not divide length={length}.")
    split = jax.tree_util.tree_map(lambda x: x.reshape(outer_size, inner, *x.shape[1:]), xs)

    @jax.checkpoint
    def inner_loop(c: Any, x: Any) -> Any:
        return jax.lax.scan(f, c, x, length=inner, reverse=reverse, unroll=unroll)

    carry, ys = jax.lax.scan(inner_loop, carry, split, length=outer_size, reverse=reverse, unroll=True)
    return carry, jax.tree_util.tree_map(lambda y: y.reshape(length, *y.shape[2:]), ys)
