"""Optimizer configs: the fields every optimizer shares, the registry, and AdamW.

``OptimizerConfig.build(num_train_steps)`` returns an optax transform whose learning rate is an injected
hyper-parameter, so that it can be read back from the state and logged as ``optim/learning_rate``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import optax
from draccus import PluginRegistry
from draccus.choice_types import CHOICE_TYPE_KEY
from draccus.parsers.decoding import decode_dataclass

from levanter.config import register_codec
from levanter.errors import ConfigError
from levanter.optim.schedules import Cosine, DecayShape, Schedule, ScheduleShape, build_schedule
from levanter.optim.transforms import clip_block_rms, clip_update_norm, skip_bad_steps
from levanter.optim.weight_decay import build_mask_fn


@dataclass(frozen=True)
class ClipUpdateNormConfig:
    """Clip updates against their own recent history; see :func:`levanter.optim.transforms.clip_update_norm`."""

    rolling_interval_length: int = 128
    sigma_factor: float = 3.0


@dataclass(frozen=True)
class SkipStepConfig:
    """Skip outlier steps; see :func:`levanter.optim.transforms.skip_bad_steps`."""

    rolling_interval_length: int = 128
    sigma_factor: float = 6.0


@dataclass(frozen=True)
class OptimizerConfig(PluginRegistry, discover_packages_path="levanter.optim"):
    """What all optimizers share: peak rate, decay of weights, schedule.

    Attributes:
        learning_rate: Peak rate.
        weight_decay: Decoupled decay per unit of learning rate.
        min_lr_ratio: Floor of the schedule as a fraction of the peak.
        warmup: Linear warm-up; at most 1 is a fraction of the cycle, above 1 a number of steps.
        decay: Length of the decay, same convention; None means everything after the warm-up.
        rewarmup: Warm-up of every cycle after the first.
        cycle_length: Length of a cycle, or a list of lengths.
        cycles: Number of equal cycles, or a list of their end steps.
        lr_schedule: Shape of the decay: a name, or ``{type: ..., field: value}``.
        weight_decay_modules: Regular expression or substrings selecting what decays; None for the default rule.
    """

    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    min_lr_ratio: float = 0.1
    warmup: float = 0.01
    decay: float | None = None
    rewarmup: float = 0.0
    cycle_length: float | int | list[float] | None = None
    cycles: int | list[int] | None = None
    lr_schedule: DecayShape | str = field(default_factory=Cosine)
    weight_decay_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        if self.learning_rate < 0 or self.weight_decay < 0:
            raise ConfigError(
                f"learning_rate={self.learning_rate}, weight_decay={self.weight_decay}; expected both >= 0.",
                key="optimizer",
            )
        decode_shape(self.lr_schedule)

    @classmethod
    def default_choice_name(cls) -> str | None:
        """The optimizer used when no ``type:`` is given."""
        return "adam"

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build the optax transform for a run of ``num_train_steps``."""
        raise NotImplementedError(type(self).__name__)

    def lr_scheduler(self, num_train_steps: int, *, peak: float | None = None) -> Schedule:
        """The schedule ``step -> rate``; ``peak`` replaces ``learning_rate`` for secondary rates."""
        spec = ScheduleShape(
            warmup=self.warmup,
            decay=self.decay,
            rewarmup=self.rewarmup,
            min_lr_ratio=self.min_lr_ratio,
            cycles=_freeze(self.cycles),
            cycle_length=_freeze(self.cycle_length),
            decay_shape=decode_shape(self.lr_schedule),
        )
        return build_schedule(spec, self.learning_rate if peak is None else peak, num_train_steps)

    def build_weight_decay_mask(self) -> Any:
        """The function from parameters to a tree of booleans that optax's decay takes."""
        return build_mask_fn(self.weight_decay_modules)


@OptimizerConfig.register_subclass("adam")
@dataclass(frozen=True)
class AdamConfig(OptimizerConfig):
    r"""AdamW: ``u = m_hat / (sqrt(v_hat) + eps) + lambda p``, ``p <- p - eta u``, after a global-norm clip.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.
        nesterov: Use Nesterov momentum in the first moment.
        adamc_weight_decay: Scale decay by ``eta / eta_max`` (arXiv:2506.02285).
        update_rms_clipping: Clip each leaf's update RMS at this value.
        clip_update_norm: Clip the whole update against its recent norms.
        skip_bad_steps: Skip outlier steps; True, a history length, or a config.

    References:
        Loshchilov and Hutter, Decoupled weight decay regularization, arXiv:1711.05101, algorithm 2.

    Example:
        >>> AdamConfig(learning_rate=1e-3).build(100) is not None
        True
    """

    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    nesterov: bool = False
    adamc_weight_decay: bool = False
    update_rms_clipping: float | None = None
    clip_update_norm: ClipUpdateNormConfig | None = None
    skip_bad_steps: bool | int | SkipStepConfig = False

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build AdamW with an injected learning rate.

        Args:
            num_train_steps: Steps in the run; fixes the schedule.
        """
        mask = self.build_weight_decay_mask()

        def optimizer(learning_rate: Any) -> optax.GradientTransformation:
            parts = [optax.clip_by_global_norm(self.max_grad_norm)] if self.max_grad_norm else []
            parts.append(optax.scale_by_adam(self.beta1, self.beta2, self.epsilon, nesterov=self.nesterov))
            if self.update_rms_clipping is not None:
                parts.append(clip_block_rms(self.update_rms_clipping))
            if self.weight_decay > 0:
                factor = learning_rate / self.learning_rate if self.adamc_weight_decay else 1.0
                parts.append(optax.add_decayed_weights(self.weight_decay * factor, mask))
            parts.append(optax.scale_by_learning_rate(learning_rate))
            if self.clip_update_norm is not None:
                clip = self.clip_update_norm
                parts.append(clip_update_norm(clip.rolling_interval_length, clip.sigma_factor))
            return optax.chain(*parts)

        built = optax.inject_hyperparams(optimizer)(learning_rate=self.lr_scheduler(num_train_steps))
        skip = _skip_config(self.skip_bad_steps)
        return skip_bad_steps(built, skip.rolling_interval_length, skip.sigma_factor) if skip else built


def hyperparams_of(opt_state: Any) -> dict[str, Any]:
    """Collect every injected hyper-parameter in an optimizer state, by name."""
    found: dict[str, Any] = {}

    def visit(node: Any) -> None:
        if hasattr(node, "hyperparams"):
            found.update(node.hyperparams)
        if isinstance(node, tuple):
            for child in node:
                visit(child)

    visit(opt_state)
    return found


def decode_shape(raw: Any, path: Sequence[str] = ()) -> DecayShape:
    """Decode a schedule given as a name or as a mapping with ``type``.

    Raises:
        ConfigError: no shape of that name.
    """
    if isinstance(raw, DecayShape):
        return raw
    fields = dict(raw) if isinstance(raw, dict) else {CHOICE_TYPE_KEY: raw}
    name = fields.pop(CHOICE_TYPE_KEY, None)
    choices = DecayShape.get_known_choices()
    if name not in choices:
        raise ConfigError(
            f"unknown schedule {name!r}; expected one of {', '.join(sorted(choices))}.", key=".".join(path)
        )
    return decode_dataclass(choices[name], fields, path)


def encode_shape(shape: DecayShape, declared: Any = None) -> Any:
    """Encode a shape as ``{type: name, ...fields}``; the inverse of :func:`decode_shape`."""
    return {CHOICE_TYPE_KEY: DecayShape.get_choice_name(type(shape)), **vars(shape)}


register_codec(DecayShape, decode_shape, encode_shape)


def _skip_config(value: bool | int | SkipStepConfig) -> SkipStepConfig | None:
    if isinstance(value, SkipStepConfig):
        return value
    if value is False:
        return None
    return SkipStepConfig() if value is True else SkipStepConfig(rolling_interval_length=value)


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
