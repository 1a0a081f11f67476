"""Recording a few steps with JAX's profiler."""

import os
from dataclasses import dataclass, field, fields
from typing import Any

import jax

from levanter.errors import ConfigError
from levanter.tracker.tracker import Tracker

_OPTIONS_KEY = "trainer.profiler.profile_options"


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
class ProfileOptionsConfig:
    """What JAX's profiler records; None leaves a choice to JAX.

    Which of these there are is up to the installed JAX; one that it lacks is refused when it is set.

    Attributes:
        host_tracer_level: Events of the host: 0 none, 1 those that users mark, 2 adds costly operations, 3 all.
        python_tracer_level: Calls of Python functions: 0 or 1. They are most of a trace and slow the steps down.
        device_tracer_level: Events of the device: 0 or 1. Releases of JAX differ in having it.
        enable_hlo_proto: Put the compiled programs into the trace.
        advanced_configuration: Settings of one kind of device by their names in JAX, such as ``tpu_trace_mode``;
            values are integers, booleans or strings.

    References:
        https://docs.jax.dev/en/latest/profiling.html, "Profiler options".

    Example:
        >>> ProfileOptionsConfig(python_tracer_level=0).build().python_tracer_level
        0
    """

    host_tracer_level: int | None = None
    python_tracer_level: int | None = None
    device_tracer_level: int | None = None
    enable_hlo_proto: bool | None = False
    advanced_configuration: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, highest in {"host_tracer_level": 3, "python_tracer_level": 1, "device_tracer_level": 1}.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= highest:
                raise ConfigError(f"{value}; expected 0 to {highest}.", key=f"{_OPTIONS_KEY}.{name}")
        for name, value in self.advanced_configuration.items():
            if not isinstance(value, int | str):
                raise ConfigError(
                    f"{value!r}; expected an integer, a boolean or a string.",
                    key=f"{_OPTIONS_KEY}.advanced_configuration.{name}",
                )
        for name in self._chosen():
            if not hasattr(jax.profiler.ProfileOptions, name):
                raise ConfigError(
                    f"the profiler of JAX {jax.__version__} has no such option. Leave it out.",
                    key=f"{_OPTIONS_KEY}.{name}",
                )

    def build(self) -> jax.profiler.ProfileOptions:
        """The same in JAX's terms."""
        options = jax.profiler.ProfileOptions()
        for name, value in self._chosen().items():
            setattr(options, name, value)
        return options

    def _chosen(self) -> dict[str, object]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != {}}


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
        profile_options: What is recorded.
        upload: What happens to the trace afterwards.
    """

    enabled: bool = False
    start_step: int = 5
    num_steps: int = 25
    perfetto_link: bool = False
    create_perfetto_trace: bool = False
    process_index: int | None = None
    profile_options: ProfileOptionsConfig = field(default_factory=ProfileOptionsConfig)
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
                profiler_options=self._config.profile_options.build(),
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
