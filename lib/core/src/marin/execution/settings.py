"""How a runner behaves, and what it says when another driver is at work."""

from dataclasses import dataclass, field

from rigging.timing import Clock, SystemClock

from marin.execution.boundaries import BoundaryHook, no_hook


@dataclass(frozen=True)
class RunnerSettings:
    """How a runner behaves; the defaults are right outside of tests.

    Attributes:
        clock: Source of time.
        lease_timeout_s: Seconds without a heartbeat after which another driver elsewhere is presumed dead.
        heartbeat_s: Seconds between heartbeats.
        poll_s: Seconds between looks at a step that another driver works on.
        hook: Told about every durable write.
    """

    clock: Clock = field(default_factory=SystemClock)
    lease_timeout_s: float = 90.0
    heartbeat_s: float = 30.0
    poll_s: float = 0.25
    hook: BoundaryHook = no_hook


@dataclass(frozen=True)
class Waiting:
    """Another driver works on the step.

    Attributes:
        holder: Who, in words.
    """

    holder: str
