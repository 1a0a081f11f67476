"""When to save and what to keep, as pure functions over numbers.

A save is *permanent* when its step is on the ``keep`` schedule, *temporary* when enough time has passed since the last
save. Temporary ones exist to bound the work a crash can lose and are pruned as soon as something newer is safe.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from levanter.errors import ConfigError


@dataclass(frozen=True)
class KeepEvery:
    """Keep every ``every``-th step up to and including ``until`` (None: for ever)."""

    every: int
    until: int | None = None


class Retention(enum.StrEnum):
    """How long a checkpoint lives."""

    TEMPORARY = "temporary"
    PERMANENT = "permanent"


def validate_keep(keep: Sequence[KeepEvery]) -> tuple[KeepEvery, ...]:
    """Check a schedule: positive, sorted by ``until``, only the last open-ended.

    Raises:
        ConfigError: any of those rules is broken.
    """
    for index, rule in enumerate(keep):
        last = index == len(keep) - 1
        if rule.every < 1 or (rule.until is None and not last):
            raise ConfigError(
                f"keep[{index}] every={rule.every}, until={rule.until}; "
                "expected every >= 1, and until on all but the last.",
                key="trainer.checkpointer.keep",
            )
    ends = [rule.until for rule in keep if rule.until is not None]
    if ends != sorted(set(ends)):
        raise ConfigError(f"keep until={ends}; expected growing ends.", key="trainer.checkpointer.keep")
    return tuple(keep)


def is_permanent_step(keep: Sequence[KeepEvery], step: int) -> bool:
    """Tell whether ``step`` is on the schedule.

    Example:
        >>> rules = [KeepEvery(2, 10), KeepEvery(5, 20), KeepEvery(10)]
        >>> [s for s in range(1, 41) if is_permanent_step(rules, s)]
        [2, 4, 6, 8, 10, 15, 20, 30, 40]
    """
    for rule in keep:
        if rule.until is None or step <= rule.until:
            return step % rule.every == 0
    return False


@dataclass(frozen=True)
class SaveSituation:
    """What the decision depends on.

    Attributes:
        step: Updates done.
        last_saved_step: Step of the last save, or -1.
        elapsed_s: Seconds since the last save.
        requested: A save somebody asked for.
        force: The end of training, or an exit signal.
    """

    step: int
    last_saved_step: int
    elapsed_s: float
    requested: Retention | None = None
    force: bool = False


def decide(keep: Sequence[KeepEvery], interval_s: float | None, at: SaveSituation) -> Retention | None:
    """Decide whether to save now, and for how long; None means no save."""
    if at.force:
        return Retention.PERMANENT
    if at.step == 0 or at.step == at.last_saved_step:
        return None
    if is_permanent_step(keep, at.step) or at.requested == Retention.PERMANENT:
        return Retention.PERMANENT
    if at.requested == Retention.TEMPORARY:
        return Retention.TEMPORARY
    if interval_s is not None and at.elapsed_s >= interval_s:
        return Retention.TEMPORARY
    return None
