"""Recording a few steps with JAX's profiler."""

import os
from dataclasses import dataclass

import jax

from levanter.errors import ConfigError


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
    """

    enabled: bool = False
    start_step: int = 5
    num_steps: int = 25
    perfetto_link: bool = False
    create_perfetto_trace: bool = False
    process_index: int | None = None

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
    """

    def __init__(self, config: ProfilerConfig, folder: str) -> None:
        self._config = config
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
