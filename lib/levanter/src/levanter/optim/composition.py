"""How an optimizer is put together: clip, direction, decay, rate, for one group of parameters or several.

An optimizer file states only its direction (a ``scale_by_*`` transform). What surrounds it is the same for all and
stands here once: the global-norm clip, decoupled weight decay on the masked leaves, and a learning rate that is
injected, so that it is in the state and is logged as ``optim/<name>``.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import optax

from levanter.errors import ConfigError
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import Kind, label_tree, parameter_kinds

Transform = optax.GradientTransformation


def transformation(init: Callable[[Any], Any], update: Callable[..., Any]) -> Transform:
    """optax's pair of functions, whatever ``update`` calls its arguments and however it types its state.

    Example:
        >>> transformation(lambda params: (), lambda grads, state, params=None: (grads, state)).init({})
        ()
    """
    return optax.GradientTransformation(cast(Any, init), cast(Any, update))


CLIP_SCOPES = ("global", "group")


def single_group(
    config: OptimizerConfig, num_train_steps: int, *direction: Transform, max_grad_norm: float | None
) -> Transform:
    """The same direction for every parameter.

    Args:
        config: Gives schedule, weight decay and mask.
        num_train_steps: Steps in the run.
        *direction: Transforms that turn the clipped gradient into ``u`` of ``p <- p - eta (u + lambda p)``.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.
    """

    def optimizer(learning_rate: Any) -> Transform:
        tail = decay_and_rate(config, learning_rate, config.weight_decay)
        return optax.chain(*clip_by_norm(max_grad_norm), *direction, *tail)

    return optax.inject_hyperparams(optimizer)(learning_rate=config.lr_scheduler(num_train_steps))


def grouped(
    config: OptimizerConfig,
    num_train_steps: int,
    groups: Callable[[Any, Any], Mapping[str, list[Transform]]],
    label: Callable[[Kind], str],
    *,
    adam_lr: float,
    max_grad_norm: float | None,
    clip_scope: str,
    adam_modules: list[str] | str | None = None,
) -> Transform:
    """A transform per kind of parameter, under one clip and two injected rates.

    Args:
        config: Gives the schedule, whose shape both rates share.
        num_train_steps: Steps in the run.
        groups: ``groups(learning_rate, adam_lr)`` gives each group's transforms, rates included.
        label: Group of a kind of parameter.
        adam_lr: Peak of the second rate.
        max_grad_norm: Norm clip; None switches it off.
        clip_scope: ``global``: one clip over all gradients. ``group``: one clip inside each group.
        adam_modules: Matrices to treat as vectors; see :func:`levanter.optim.matrices.parameter_kinds`.

    Raises:
        ConfigError: any other ``clip_scope``.
    """
    if clip_scope not in CLIP_SCOPES:
        raise ConfigError(f"clip_scope={clip_scope!r}; expected global or group.", key="optimizer.clip_scope")

    def labels(params: Any) -> Any:
        kinds = parameter_kinds(params, adam_modules=adam_modules)
        return label_tree(params, lambda name: label(kinds[name]))

    def optimizer(learning_rate: Any, adam_lr: Any) -> Transform:
        inside = clip_by_norm(max_grad_norm) if clip_scope == "group" else []
        outside = clip_by_norm(max_grad_norm) if clip_scope == "global" else []
        parts = {name: optax.chain(*inside, *chain) for name, chain in groups(learning_rate, adam_lr).items()}
        return optax.chain(*outside, optax.partition(cast(Any, parts), labels))

    rates = {
        "learning_rate": config.lr_scheduler(num_train_steps),
        "adam_lr": config.lr_scheduler(num_train_steps, peak=adam_lr),
    }
    return optax.inject_hyperparams(optimizer)(**rates)


def clip_by_norm(limit: float | None) -> list[Transform]:
    """The global-norm clip, or nothing."""
    return [optax.clip_by_global_norm(limit)] if limit else []


def decay_and_rate(config: OptimizerConfig, rate: Any, weight_decay: float) -> list[Transform]:
    """Decoupled decay on the masked leaves, then ``-rate``."""
    decay = [optax.add_decayed_weights(weight_decay, config.build_weight_decay_mask())] if weight_decay > 0 else []
    return [*decay, optax.scale_by_learning_rate(rate)]


def check_fractions(optimizer: str, **values: float) -> None:
    """Refuse decay rates outside ``[0, 1)``.

    Raises:
        ConfigError: names the field, its value and the range.

    Example:
        >>> check_fractions("lion", beta1=0.9)
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ConfigError(
                f"{optimizer}: {name}={value}; expected 0 <= {name} < 1. An exponential average keeps that fraction.",
                key=f"optimizer.{name}",
            )


def check_positive(optimizer: str, **values: float | None) -> None:
    """Refuse values that are not above 0; None passes.

    Raises:
        ConfigError: names the field, its value and the range.
    """
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ConfigError(
                f"{optimizer}: {name}={value}; expected {name} > 0 (or null where the field may be off).",
                key=f"optimizer.{name}",
            )
