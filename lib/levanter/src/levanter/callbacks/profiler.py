"""Recording a few steps with JAX's profiler."""

import os
from dataclasses import dataclass, field

import jax

from levanter.errors import ConfigError
from levanter.tracker.tracker import Tracker


@dataclass(frozen=True)
class ProfileUploadConfig:
    """What happens to a finished trace.

    Attributes:
        enabled: Give its files to the run's trackers as artifacts of type ``profile``; what a tracker does with an
            artifact (wandb uploads it, ``json_file`` copies it) is its own affair.
        ttl_days: Days that a server would keep it, at least 1. Artifacts of trackers live as long as the tracker keeps
            them; the value is recorded and nothing more.
        service_url: A server that receives traces; there is none here, so anything but None is refused.
    """

    enabled: bool = True
    ttl_days: int = 30
    service_url: str | None = None

    def __post_init__(self) -> None:
        if self.ttl_days < 1:
            raise ConfigError(f"ttl_days={self.ttl_days}; expected >= 1.", key="trainer.profiler.upload.ttl_days")
        if self.service_url is not None:
            raise ConfigError(
                f"service_url={self.service_url!r}; traces go to the run's trackers, not to a server of their own. "
                "Leave it out, and use a tracker that uploads artifacts.",
                key="trainer.profiler.upload.service_url",
            )


@dataclass(frozen=True)
class ProfilerConfig:
    """When to trace.

    Attributes:
        enabled: Trace at all.
        start_step: Updates before the trace starts.
        num_steps: Updates it lasts.
        perfetto_link: Print a link to the viewer and wait for it.
        create_perfetto_trace: Also write a Perfetto trace.
        process_index: Trace only this process; None traces all.
        upload: What happens to the trace afterwards.
    """

    enabled: bool = False
    start_step: int = 5
    num_steps: int = 25
    perfetto_link: bool = False
    create_perfetto_trace: bool = False
    process_index: int | None = None
    upload: ProfileUploadConfig = field(default_factory=ProfileUploadConfig)

    def __post_init__(self) -> None:
        if self.start_step < 0 or self.num_steps < 1:
            raise ConfigError(
                f"start_step={self.start_step}, num_steps={self.num_steps}; expected >= 0 and >= 1.",
                key="trainer.profiler",
            )


class Profiler:
    """Starts and stops the trace at its steps.

    Args:
        config: When.
        folder: Where the trace goes.
        tracker: Gets the files of a finished trace; None keeps them to the folder.
    """

    def __init__(self, config: ProfilerConfig, folder: str, tracker: Tracker | None = None) -> None:
        self._config = config
        self._tracker = tracker if config.upload.enabled else None
        self._folder = os.path.join(folder, "profile")
        self._active = False
        wanted = config.process_index
        self._enabled = config.enabled and (wanted is None or wanted == jax.process_index())

    def on_step(self, next_step: int) -> None:
        """Call after every step, once its work is done."""
        if not self._enabled:
            return
        if next_step == self._config.start_step:
            jax.profiler.start_trace(
                self._folder,
                create_perfetto_link=self._config.perfetto_link,
                create_perfetto_trace=self._config.create_perfetto_trace,
            )
            self._active = True
        elif next_step == self._config.start_step + self._config.num_steps:
            self.stop()

    def wants(self, next_step: int) -> bool:
        """Whether the loop must wait for this step's work before calling :meth:`on_step`."""
        edge = self._config.start_step
        return self._enabled and next_step in (edge, edge + self._config.num_steps)

    def stop(self) -> None:
        """End a trace that is running."""
        if self._active:
            self._active = False
            jax.profiler.stop_trace()
            self._hand_over()

    def _hand_over(self) -> None:
        if self._tracker is None:
            return
        for parent, _, names in os.walk(self._folder):
            for name in sorted(names):
                path = os.path.join(parent, name)
                kept = os.path.join("profile", os.path.relpath(path, self._folder))
                self._tracker.log_artifact(path, name=kept, type="profile")
