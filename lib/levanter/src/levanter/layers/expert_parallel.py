r"""Experts spread over a mesh axis: every device holds some experts and sees the tokens of all.

With the axis ``expert`` of size ``X`` and ``E / X`` experts a device, a layer is, on every device:

    all_gather the tokens, choices and weights of the axis   (when tokens are split over it)
    take the assignments to local experts, at most the capacity
    multiply, weigh, add up per token
    reduce_scatter the sums back to the tokens' owners        (or all-reduce when tokens are not split over the axis)

Traffic is ``2 T D`` a device whatever the routing, the compute is that of the true group sizes, and without a capacity
factor the result is that of one device. With one, the buffer is ``ceil(c T K / X)`` rows, and a device takes at most
``ceil(c V / X)`` assignments, where ``V`` are those that are not padding; what is beyond that, in expert order, is
dropped by the device that receives it and counted.

The expert width may be split over another axis (tensor parallelism); partial sums are added in the same reduction.

Shape suffixes: T tokens, D model, K experts a token, E experts, I expert width.

References:
    Lepikhin et al., GShard, arXiv:2006.16668, section 3; the gathered ("ring") form avoids its all-to-all.
"""

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from levanter.errors import ConfigError
from levanter.layers.moe import ExpertWeights, expert_counts, moe_mlp
from levanter.sharding import current_axes, current_mesh

EXPERTS = "experts"


def sharded_moe_mlp(
    x_TD: jax.Array,
    selected_TK: jax.Array,
    weights_TK: jax.Array,
    experts: ExpertWeights,
    *,
    batch: int,
    activation: str = "silu",
    implementation: str = "auto",
    capacity_factor: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """:func:`levanter.layers.moe.moe_mlp` on whatever mesh the step runs on.

    Args:
        x_TD: Tokens, batch-major.
        selected_TK: Experts of each token, int32; an id outside ``0 .. E-1`` contributes nothing.
        weights_TK: Combine weights.
        experts: Matrices; ``E`` is laid out over the mesh axis that ``experts`` maps to.
        batch: Size of the batch axis inside ``T``; decides how tokens are split.
        activation: Gate's activation.
        implementation: Kernel; see :func:`~levanter.layers.moe.moe_mlp`.
        capacity_factor: Rows a device reserves, as a multiple of the even share; None is dropless.

    Returns:
        ``([T, D], dropped)``: the sums, and how many assignments were dropped over all devices, float32 scalar.

    Raises:
        ConfigError: a capacity factor that is not above 0.
    """
    if capacity_factor is not None and capacity_factor <= 0:
        raise ConfigError(f"capacity_factor={capacity_factor}; expected > 0, or null for no limit.", key="model")
    run = functools.partial(moe_mlp, activation=activation, implementation=implementation)
    mesh, num_experts = current_mesh(), experts.gate.shape[0]
    split = current_axes(EXPERTS, num_experts)
    if mesh is None or not split:
        return run(x_TD, selected_TK, weights_TK, experts), jnp.zeros((), jnp.float32)
    tokens = current_axes("batch", batch)
    inner = tuple(a for a in current_axes("mlp", experts.gate.shape[-1]) if a not in (*tokens, *split))
    by_token, width = PartitionSpec(tokens or None), inner or None
    specs = cast(Any, ExpertWeights)(
        PartitionSpec(split, None, width), PartitionSpec(split, None, width), PartitionSpec(split, width, None)
    )

    def local(x: jax.Array, selected: jax.Array, weights: jax.Array, own: ExpertWeights) -> tuple:
        shared = tuple(axis for axis in split if axis in tokens)
        if shared:
            x, selected, weights = (jax.lax.all_gather(a, shared, tiled=True) for a in (x, selected, weights))
        first = _device_index(mesh, split) * own.gate.shape[0]
        own_ids = selected - first
        local_experts, ways = own.gate.shape[0], math.prod(mesh.shape[axis] for axis in split)
        room, limit = None, None
        if capacity_factor is not None:
            room = min(selected.size, max(local_experts, math.ceil(capacity_factor * selected.size / ways)))
            valid = jnp.sum((selected >= 0) & (selected < num_experts), dtype=jnp.int32)
            share = jnp.ceil(valid.astype(jnp.float32) * (capacity_factor / ways)).astype(jnp.int32)
            limit = jnp.minimum(jnp.maximum(share, local_experts), room)
        y = run(x, own_ids, weights, own, capacity=room, limit=limit)
        y = jax.lax.psum(y, (*inner, *(a for a in split if a not in shared))) if inner or shared != split else y
        y = jax.lax.psum_scatter(y, shared, tiled=True) if shared else y
        over = jnp.zeros((), jnp.float32)
        if limit is not None:
            over = jnp.maximum(jnp.sum(expert_counts(own_ids, local_experts)) - limit, 0).astype(jnp.float32)
            over = jax.lax.psum(over, (*split, *(a for a in tokens if a not in split)))
        return y, over

    # Varying-axis checks do not see through the kernels' hand-written backward passes.
    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(by_token, by_token, by_token, specs),
        out_specs=(by_token, PartitionSpec()),
        check_vma=False,
    )
    return mapped(x_TD, selected_TK, weights_TK, experts)


def _device_index(mesh: Mesh, axes: tuple[str, ...]) -> jax.Array:
    index = jnp.zeros((), jnp.int32)
    for axis in axes:
        index = index * mesh.shape[axis] + jax.lax.axis_index(axis)
    return index
