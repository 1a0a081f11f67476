"""Hooks: functions called between steps with a view of the run.

``every=N`` means after updates N, 2N, ... A hook that needs only numbers is a *metrics hook* and sees them one step
late,
so that the device never waits for it; any other hook makes the loop wait for its step, so give it an ``every`` above
one. At the end of training every hook runs once more with ``force=True`` (if it takes that argument).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from levanter.trainer_state import TrainerState


@dataclass(frozen=True)
class StepInfo:
    """The run just after a step.

    Attributes:
        state: State after the step; valid only during the call, because the next step takes its buffers.
        loss: Loss of the step, nats.
        step_duration: Wall-clock seconds of the step.
    """

    state: TrainerState
    loss: float
    step_duration: float

    @property
    def step(self) -> int:
        """0-based index of the step just finished."""
        return int(self.state.step) - 1

    @property
    def next_step(self) -> int:
        """Updates done."""
        return int(self.state.step)

    @property
    def model(self) -> Any:
        """The model."""
        return self.state.model

    @property
    def eval_model(self) -> Any:
        """The averaged model when there is one."""
        return self.state.eval_model

    @property
    def opt_state(self) -> Any:
        """The optimizer's state."""
        return self.state.opt_state


@dataclass(frozen=True)
class Hook:
    """A callable with its period.

    Attributes:
        fn: ``fn(info)`` or ``fn(info, force=bool)``.
        every: Period in updates.
        takes_force: Whether ``fn`` accepts ``force``.
    """

    fn: Callable[..., Any]
    every: int
    takes_force: bool

    @staticmethod
    def of(fn: Callable[..., Any], every: int) -> "Hook":
        """Wrap a callable.

        Raises:
            ValueError: ``every`` below 1.
        """
        if every < 1:
            raise ValueError(f"bad hook period: every={every}; expected >= 1.")
        parameters = inspect.signature(fn).parameters
        kinds = {p.kind for p in parameters.values()}
        return Hook(fn, every, "force" in parameters or inspect.Parameter.VAR_KEYWORD in kinds)

    def due(self, next_step: int) -> bool:
        """Whether it runs after ``next_step`` updates."""
        return next_step % self.every == 0

    def call(self, info: StepInfo, *, force: bool = False) -> None:
        """Run it."""
        if self.takes_force:
            self.fn(info, force=force)
        else:
            self.fn(info)


MetricsHook = Callable[[int, Mapping[str, Any]], None]
