"""Say what a run will need before it starts: parameters, FLOPs, bytes per device.

    python -m levanter.main.plan --config_path config.yaml

Takes the configuration of ``train_lm``, reads no data, allocates nothing, and compiles the training step once. The
figures are for the devices this process sees.
"""

import sys
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis

from levanter import config as levanter_config
from levanter.data.text.examples import LmExample
from levanter.errors import LevanterError
from levanter.flops import device_peak_flops
from levanter.main.train_lm import TrainLmConfig, make_loss, vocabulary_size
from levanter.memory_estimate import compiled_memory, estimate_memory
from levanter.models.decoder import RotaryDecoderConfig
from levanter.sharding import tree_shardings
from levanter.step import StepSpec, build_train_step
from levanter.trainer_state import TrainerState


def plan(config: TrainLmConfig) -> dict[str, float | int | str]:
    """What the run needs, by name.

    Returns:
        Counts, bytes per device (``estimated_*`` by formula where the model has one, ``compiled_*`` by XLA), FLOPs of a
        step, and on a known device the seconds a step takes at 40 % utilisation.
    """
    trainer = config.trainer
    trainer.apply_jax_config()
    mesh = trainer.mesh.device_mesh()
    data_ways = trainer.mesh.data_axis_size(mesh)
    batch_size = max(trainer.batch_schedule(data_ways).unique_batch_sizes())
    micro = trainer.microbatch_size(data_ways) or batch_size
    length, vocab = config.sequence_length, vocabulary_size(config)
    flops = 3 * config.model.flops_per_token(vocab, length) * batch_size * length
    report: dict[str, float | int | str] = {
        "parameters": config.model.total_trainable_params(vocab),
        "tokens_per_step": batch_size * length,
        "tokens_in_all": trainer.batch_schedule(data_ways).global_data_offset_by_step(trainer.num_train_steps) * length,
        "flops_per_step": flops,
        "devices": mesh.size,
        "device_kind": jax.devices()[0].device_kind,
    }
    if isinstance(config.model, RotaryDecoderConfig):
        counted = estimate_memory(
            config.model, vocab_size=vocab, batch_size=micro, seq_len=length, mp=trainer.policy, data_ways=data_ways
        )
        report |= {f"estimated_{name}_bytes": getattr(counted, name) for name in ESTIMATED}
    state, batch = shapes_of(config, mesh, batch_size, vocab)
    compute, params = trainer.mesh.resolved_compute_mapping(mesh), trainer.mesh.resolved_param_mapping(mesh)
    watch = trainer.watch if trainer.watch.is_enabled else None
    spec = StepSpec(
        make_loss(config), trainer.mesh.batch_axis_name, trainer.microbatch_size(data_ways), watch,
        None if mesh.size == 1 else mesh, compute, params,
    )  # fmt: skip
    found = compiled_memory(build_train_step(spec), state, batch)
    report |= {
        "compiled_state_bytes": found.state,
        "compiled_temporary_bytes": found.temporaries,
        "compiled_total_bytes": found.total,
    }
    kind, peak = device_peak_flops()
    if peak:
        report |= {
            "device_peak": kind,
            "seconds_per_step_at_40_percent": flops / (0.4 * peak * mesh.size),
        }
    return report


ESTIMATED = ("parameters", "gradients", "optimizer", "activations", "logits", "total")


def shapes_of(config: TrainLmConfig, mesh: Any, batch_size: int, vocab: int) -> tuple[Any, Any]:
    """Shapes and shardings of the first state and of a batch."""
    trainer = config.trainer
    key = jax.random.PRNGKey(0)
    optimizer = config.optimizer.build(trainer.num_train_steps)

    def fresh() -> TrainerState:
        model = config.model.build(Axis("vocab", vocab), key=key)
        return TrainerState.init(optimizer, model, key=key, mp=trainer.policy, averaging=trainer.model_averaging)

    def example() -> LmExample:
        axes = (Axis(trainer.mesh.batch_axis_name, batch_size), Axis("position", config.sequence_length))
        return LmExample.causal(hax.named(jnp.zeros([axis.size for axis in axes], jnp.int32), axes))

    state, batch = eqx.filter_eval_shape(fresh), eqx.filter_eval_shape(example)
    if mesh.size == 1:
        return state, batch

    def placed(tree: Any, mapping: Any) -> Any:
        shardings = tree_shardings(tree, mapping, mesh)
        return jax.tree.map(lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), tree, shardings)

    return (
        placed(state, trainer.mesh.resolved_param_mapping(mesh)),
        placed(batch, trainer.mesh.resolved_compute_mapping(mesh)),
    )


def render(report: dict[str, float | int | str]) -> str:
    """Lines of ``name  value``, bytes and FLOPs in readable units.

    Example:
        >>> render({"compiled_total_bytes": 3_500_000})
        'compiled_total_bytes   3.5 MB'
    """
    width = max(len(name) for name in report)
    return "\n".join(f"{name:<{width}}   {_readable(name, value)}" for name, value in report.items())


def _readable(name: str, value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    unit = "B" if name.endswith("_bytes") else "FLOP" if name.startswith("flops") else ""
    if unit:
        for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if value >= scale:
                return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


@levanter_config.main()
def main(config: TrainLmConfig) -> None:
    """Run :func:`plan` as a command."""
    try:
        print(render(plan(config)), file=sys.stdout)
    except LevanterError as error:
        levanter_config.fail_with_hint(error, levanter_config.EXIT_BAD_CONFIG)


if __name__ == "__main__":
    main()
