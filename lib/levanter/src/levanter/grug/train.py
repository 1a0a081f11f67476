r"""Training the grug model: state, step and layout, written out.

    state = (step, params, router bias, optimizer state)
    step:  loss, beta = f(params, bias, batch);  params <- optimizer(grad);  bias <- -beta

The router bias is set, not trained: it is outside the parameters, float32 whatever the compute dtype, and the gradient
never sees it. On a mesh with the axes ``data``, ``expert`` and ``model`` (size 1 where unused) the batch is split over
``data`` and ``expert``, experts over ``expert``, and storage as :func:`levanter.grug.model.partition_specs` says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from levanter.grug.model import GrugMoeConfig, Params, hidden_states, init, initial_bias, partition_specs
from levanter.grug.router import report
from levanter.kernels.fused_cross_entropy import CrossEntropySpec, cross_entropy_sum
from levanter.layers.attention_mask import AttentionMask
from levanter.sharding import compute_sharding
from levanter.tree_paths import named_leaves, path_name

MAPPING = {"batch": ["data", "expert"], "experts": "expert", "mlp": "model"}
AXES = ("data", "expert", "model")


class Batch(NamedTuple):
    """``ids_BP`` int32; ``weight_BP`` float32, loss weight of predicting the *next* token; ``valid_BP`` bool."""

    ids: jax.Array
    weight: jax.Array
    valid: jax.Array | None = None


class GrugState(NamedTuple):
    """Everything a step reads and writes."""

    step: jax.Array
    params: Params
    router_bias: jax.Array
    opt_state: Any


def make_mesh(*, expert: int = 1, model: int = 1) -> Mesh:
    """A mesh of all devices; ``data`` takes what ``expert`` and ``model`` leave.

    Raises:
        ValueError: the product does not divide the devices.
    """
    devices = jax.device_count()
    if devices % (expert * model):
        raise ValueError(f"expert={expert}, model={model}, devices={devices}; expected a product that divides them.")
    sizes = (devices // (expert * model), expert, model)
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def initial_state(
    c: GrugMoeConfig, optimizer: optax.GradientTransformation, key: jax.Array, mesh: Mesh | None = None
) -> GrugState:
    """State before the first step, made in place on the mesh."""

    def make(key: jax.Array) -> GrugState:
        params = init(c, key)
        return GrugState(jnp.zeros((), jnp.int32), params, initial_bias(c), optimizer.init(params))

    if mesh is None:
        return jax.jit(make)(key)
    return jax.jit(make, out_shardings=state_shardings(c, optimizer, mesh))(key)


def state_shardings(c: GrugMoeConfig, optimizer: optax.GradientTransformation, mesh: Mesh) -> GrugState:
    """Layout of the state: moments lie as their parameters, what has no parameter's shape is on every device.

    A moment is recognised by the end of its path, which is that of its parameter, and by its shape.
    """
    specs = partition_specs(c)
    params = jax.eval_shape(lambda: init(c, jax.random.PRNGKey(0)))
    flat_specs = jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, P))
    known = {name: (leaf.shape, s) for (name, leaf), s in zip(named_leaves(params), flat_specs, strict=True)}

    def of(path: tuple, leaf: Any) -> NamedSharding:
        parts = path_name(path).split(".")
        ends = (known.get(".".join(parts[start:])) for start in range(len(parts)))
        shape, spec = next((found for found in ends if found is not None), (None, P()))
        return NamedSharding(mesh, spec if shape == leaf.shape else P())

    laid_out = jax.tree_util.tree_map_with_path(of, jax.eval_shape(optimizer.init, params))
    whole = NamedSharding(mesh, P())
    return cast(Any, GrugState)(whole, jax.tree.map(lambda s: NamedSharding(mesh, s), specs), whole, laid_out)


def loss_fn(
    c: GrugMoeConfig, params: Params, bias_LE: jax.Array, batch: Batch, segments: AttentionMask | None = None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean next-token loss in nats, and what the routers report."""
    x_BPD, aux = hidden_states(c, params, bias_LE, batch.ids, valid_BP=batch.valid, segments=segments)
    labels = jnp.roll(batch.ids, -1, axis=1).reshape(-1)
    weight = batch.weight.at[:, -1].set(0.0).reshape(-1)
    spec = CrossEntropySpec(False, c.z_loss_weight, None, None)
    total, nll = cross_entropy_sum(x_BPD.reshape(-1, c.hidden_dim), params.output_proj, labels, weight, spec)
    mass = jnp.maximum(jnp.sum(weight), 1.0)
    return total / mass, {**aux, "cross_entropy": nll / mass}


def make_train_step(
    c: GrugMoeConfig, optimizer: optax.GradientTransformation, *, mesh: Mesh | None = None, dtype: Any = jnp.float32
) -> Callable[[GrugState, Batch], tuple[GrugState, dict[str, jax.Array]]]:
    """Compile ``(state, batch) -> (state, metrics)``; the state is donated.

    Args:
        c: Config.
        optimizer: Any optax transform; ``grug_muon`` and ``muonH`` recognise the arrays by shape.
        mesh: Devices, with the axes of :func:`make_mesh`; None for one device.
        dtype: Compute dtype of the parameters; master copies, router and bias stay float32.
    """
    tx = optax.with_extra_args_support(optimizer)

    def step(state: GrugState, batch: Batch) -> tuple[GrugState, dict[str, jax.Array]]:
        def objective(params: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
            lowered = jax.tree.map(lambda x: x.astype(dtype), params)
            return loss_fn(c, lowered, state.router_bias, batch)

        with compute_sharding(mesh, MAPPING):
            (loss, aux), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
            updates, opt_state = tx.update(grads, state.opt_state, state.params, loss=loss)
        params = cast(Params, optax.apply_updates(cast(Any, state.params), updates))
        new = GrugState(state.step + 1, params, -aux["beta"], opt_state)
        metrics = report(aux, c.num_experts_per_tok)
        return new, metrics | {"train/loss": loss, "train/cross_entropy_loss": aux["cross_entropy"]}

    if mesh is None:
        return jax.jit(step, donate_argnums=0)
    layout = state_shardings(c, optimizer, mesh)
    return jax.jit(step, donate_argnums=0, out_shardings=(layout, NamedSharding(mesh, P())))
