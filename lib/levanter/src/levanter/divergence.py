"""Knowing early that a run is lost.

A non-finite loss is certain; a loss that stays far above its best value is nearly so. Both are judged on the host from
the losses in order, so a resumed run (its state is in the checkpoint's metadata) judges exactly as an undisturbed one.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from levanter.errors import ConfigError


@dataclass(frozen=True)
class DivergenceConfig:
    """When to give up.

    Attributes:
        enabled: Judge at all.
        max_loss_ratio: A loss above this many times its running minimum counts as bad; None judges only finiteness.
        patience: Bad steps in a row that are put up with.
        warmup_steps: Steps before the ratio is judged.
    """

    enabled: bool = True
    max_loss_ratio: float | None = 3.0
    patience: int = 20
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        if self.max_loss_ratio is not None and self.max_loss_ratio <= 1:
            raise ConfigError(f"max_loss_ratio={self.max_loss_ratio}; expected > 1.", key="trainer.divergence")
        if self.patience < 1 or self.warmup_steps < 0:
            raise ConfigError(
                f"patience={self.patience}, warmup_steps={self.warmup_steps}; expected >= 1 and >= 0.",
                key="trainer.divergence",
            )


@dataclass(frozen=True)
class DivergenceState:
    """What has been seen.

    Attributes:
        minimum: Smallest loss so far, nats.
        bad_steps: Bad steps in a row.
    """

    minimum: float = math.inf
    bad_steps: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON values; the inverse of :meth:`from_json`."""
        return {"minimum": None if math.isinf(self.minimum) else self.minimum, "bad_steps": self.bad_steps}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        minimum = raw["minimum"]
        return cls(math.inf if minimum is None else float(minimum), int(raw["bad_steps"]))


def judge(
    config: DivergenceConfig, state: DivergenceState, step: int, loss: float
) -> tuple[DivergenceState, str | None]:
    """Fold one loss in.

    Args:
        config: Rules.
        state: What has been seen.
        step: 0-based step of the loss.
        loss: Loss in nats.

    Returns:
        ``(new state, reason)``; a reason means the run diverged.

    Example:
        >>> judge(DivergenceConfig(), DivergenceState(), 0, float("nan"))[1]
        'loss is not finite'
    """
    if not config.enabled:
        return state, None
    if not math.isfinite(loss):
        return state, "loss is not finite"
    state = replace(state, minimum=min(state.minimum, loss))
    ratio = config.max_loss_ratio
    bad = ratio is not None and step >= config.warmup_steps and loss > ratio * max(state.minimum, 1e-12)
    state = replace(state, bad_steps=state.bad_steps + 1 if bad else 0)
    if state.bad_steps >= config.patience:
        return state, f"loss above {ratio:g} x its minimum {state.minimum:.4g} for {config.patience} steps"
    return state, None
