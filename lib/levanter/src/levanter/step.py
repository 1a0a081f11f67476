"""The compiled training step: differentiate, update, report; pure, donated, one program.

The step takes the state and a batch and returns the next state and a flat dictionary of scalars. It never waits for
anything: whoever calls it decides when to look at the numbers.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from levanter.callbacks.watch import WatchConfig, watch_values
from levanter.grad_accum import accumulate_gradients, batch_size_of, slice_batch
from levanter.metrics import Metric, Reduction, as_metrics
from levanter.optim.config import hyperparams_of
from levanter.optim.transforms import ClipUpdateState, SkipStepState
from levanter.sharding import AxisMapping, compute_sharding, constrain_tree
from levanter.tracker.tracker_fns import collect_jit_metrics
from levanter.trainable import BUFFER_PREFIX, partition_trainable, with_buffers
from levanter.trainer_state import TrainerState

LossFn = Callable[..., Any]
LOSS = "train/loss"
WATCH = "watch"


@dataclass(frozen=True)
class StepSpec:
    """What fixes the compiled program.

    Attributes:
        loss_fn: ``loss_fn(model, batch, key=key)`` returning a scalar, a :class:`Metric`, or either with a
        dictionary of
            metrics. A scalar counts as the mean over the examples. Metrics named ``buffer/<path>`` are what the step
            sets the model's buffers to (:class:`levanter.trainable.Buffer`).
        batch_axis: Name of the batch axis.
        micro_size: Examples differentiated at once; None for all.
        watch: Norms to watch, or None.
        mesh: Devices, or None for one device without constraints.
        compute_mapping: Layout of activations.
        param_mapping: Layout of parameters and optimizer state.
    """

    loss_fn: LossFn
    batch_axis: str = "batch"
    micro_size: int | None = None
    watch: WatchConfig | None = None
    mesh: Mesh | None = None
    compute_mapping: AxisMapping = field(default_factory=dict)
    param_mapping: AxisMapping = field(default_factory=dict)


def build_train_step(spec: StepSpec) -> Any:
    """Compile ``(state, batch) -> (state, outputs)``, a jitted function; the state's buffers are donated.

    Outputs are float32 scalars by metric name; watched values sit under the key ``watch``.
    """

    def step(state: TrainerState, batch: Any) -> tuple[TrainerState, dict[str, Any]]:
        with compute_sharding(spec.mesh, spec.compute_mapping):
            return _step(spec, state, batch)

    return jax.jit(step, donate_argnums=(0,))


def build_eval_step(spec: StepSpec, mp: Any) -> Callable[[Any, Any], tuple[Metric, dict[str, Metric]]]:
    """Compile ``(model, batch) -> (loss, metrics)`` without gradients."""

    def evaluate(model: Any, batch: Any) -> tuple[Metric, dict[str, Metric]]:
        with compute_sharding(spec.mesh, spec.compute_mapping):
            compute_model = mp.cast_to_compute(model)
            size = batch_size_of(batch, spec.batch_axis)
            return run_loss(spec.loss_fn, compute_model, batch, None, size)

    return jax.jit(evaluate)


def run_loss(
    loss_fn: LossFn, model: Any, batch: Any, key: jax.Array | None, size: int
) -> tuple[Metric, dict[str, Metric]]:
    """Call a loss function and normalise what it returns.

    Args:
        loss_fn: See :class:`StepSpec`.
        model: Model in the compute dtype.
        batch: One batch, or a tuple of arguments.
        key: PRNG key, or None in evaluation.
        size: Examples, the mass of a plain scalar.
    """
    with collect_jit_metrics() as collected:
        result = loss_fn(model, batch, key=key)
    loss, extra = result if isinstance(result, tuple) else (result, {})
    if not isinstance(loss, Metric):
        value = loss.array if hasattr(loss, "array") else loss
        loss = Metric.from_value(value, Reduction.MEAN, count=float(size))
    metrics = {name: jax.lax.stop_gradient(v) for name, v in {**collected, **extra}.items()}
    return loss, as_metrics(metrics, mass=loss.count)


def _step(spec: StepSpec, state: TrainerState, batch: Any) -> tuple[TrainerState, dict[str, Any]]:
    key, next_key = jax.random.split(state.training_key)
    params, rest = partition_trainable(state.model)
    whole = spec.micro_size is None or spec.micro_size >= batch_size_of(batch, spec.batch_axis)

    def objective(params: Any, part: Any, part_key: jax.Array) -> tuple[jax.Array, Any]:
        model = state.mp.cast_to_compute(eqx.combine(params, rest))
        loss, metrics = run_loss(spec.loss_fn, model, part, part_key, batch_size_of(part, spec.batch_axis))
        # Whole batches differentiate the mean itself, so that no second pass over the gradients is needed.
        return (loss.result() if whole else loss.value), (loss, metrics)

    differentiate = jax.value_and_grad(objective, has_aux=True)
    if whole:
        (_, (loss, metrics)), grads = differentiate(params, batch, key)
    else:

        def pieces(part: Any, part_key: jax.Array) -> Any:
            (_, aux), part_grads = differentiate(params, part, part_key)
            return aux, part_grads

        loss, metrics, grads = accumulate_gradients(pieces, batch, spec.micro_size, key, batch_axis=spec.batch_axis)
    if spec.mesh is not None:
        grads = constrain_tree(grads, spec.param_mapping, spec.mesh)
    mean = loss.result()

    def batch_objective(p: Any) -> jax.Array:
        # Traced only by optimizers that ask for it; curvature of the first micro-batch stands for the batch's.
        part = batch if whole else slice_batch(batch, 0, spec.micro_size or 0, spec.batch_axis)
        return objective(p, part, key)[1][0].result()

    new_state, updates = state.take_step(grads, loss=mean, key=next_key, obj_fn=batch_objective)
    buffers = {name: metrics.pop(name).result() for name in [*metrics] if name.startswith(BUFFER_PREFIX)}
    if buffers:
        values = {name.removeprefix(BUFFER_PREFIX): value for name, value in buffers.items()}
        new_state = dataclasses.replace(new_state, model=with_buffers(new_state.model, values))
    if spec.mesh is not None:
        new_state = constrain_tree(new_state, spec.param_mapping, spec.mesh)
    outputs: dict[str, Any] = {LOSS: mean, **_optimizer_metrics(new_state.opt_state)}
    outputs |= {_train_name(name): metric.result() for name, metric in metrics.items()}
    if spec.watch is not None and spec.watch.is_enabled:
        targets = {"grads": grads, "params": params, "updates": updates, "opt_state": new_state.opt_state}
        outputs[WATCH] = watch_values(spec.watch, targets, new_state.step)
    return new_state, outputs


def _train_name(name: str) -> str:
    return name if "/" in name else f"train/{name}"


def _optimizer_metrics(opt_state: Any) -> Mapping[str, jax.Array]:
    metrics = {f"optim/{name}": jnp.asarray(value) for name, value in hyperparams_of(opt_state).items()}

    def visit(node: Any) -> None:
        if isinstance(node, SkipStepState):
            metrics["optim/skipped_step"] = node.skipped
        if isinstance(node, ClipUpdateState):
            metrics["optim/clip_update/did_clip"] = node.did_clip
            metrics["optim/clip_update/pre_clip_norm"] = node.pre_clip_norm
            metrics["optim/clip_update/update_norm_threshold"] = node.threshold
        if isinstance(node, tuple):
            for child in node:
                visit(child)

    visit(opt_state)
    return metrics
