"""The trainer's configuration: every field is a published one, or is documented as ours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from levanter._env import run_id_from_environment
from levanter._old_keys import translate_trainer
from levanter.callbacks.profiler import ProfilerConfig
from levanter.callbacks.status_page import StatusPageConfig
from levanter.callbacks.watch import WatchConfig
from levanter.callbacks.watchdog import ProgressWatchdogConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.config import register_translation
from levanter.divergence import DivergenceConfig
from levanter.errors import ConfigError
from levanter.mesh import MeshConfig
from levanter.optim.model_averaging import ModelAveragingConfig
from levanter.precision import Policy
from levanter.schedule import BatchSchedule, ScheduleStep
from levanter.tracker.json_file import JsonFileConfig
from levanter.tracker.tracker import TrackerConfig


@dataclass(frozen=True)
class DistributedConfig:
    """How several processes find each other; the defaults mean one process.

    Attributes:
        coordinator_address: ``host:port`` of process 0.
        num_processes: Processes in the run.
        process_id: This process.
        local_device_ids: Devices of this process.
        initialize_jax_distributed: Call ``jax.distributed.initialize`` when a coordinator is given.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: list[int] | None = None
    initialize_jax_distributed: bool = True

    def initialize(self) -> None:
        """Join the other processes, if any."""
        if self.initialize_jax_distributed and self.coordinator_address is not None:
            jax.distributed.initialize(
                self.coordinator_address, self.num_processes, self.process_id, self.local_device_ids
            )


@dataclass(frozen=True)
class TrainerConfig:
    """How to train, whatever the model and the data.

    Attributes:
        seed: Root of all randomness.
        mp: Precision policy, ``f32`` or ``p=f32,c=bfloat16``.
        model_averaging: Average the weights along the way.
        log_dir: Folder for logs and local trackers.
        id: Run id; None takes ``RUN_ID`` or a fixed name derived from the seed.
        tracker: One tracker or several.
        watch: Norms and histograms of gradients and parameters.
        profiler: Traces of a few steps.
        progress_watchdog: End the process when nothing moves.
        status_page: A page that shows how the run is doing.
        divergence: When to give up on a run.
        crash_on_nan: Treat NaN as divergence.
        crash_on_inf: Treat infinity as divergence.
        log_jaxprs: Store the step's jaxpr as an artifact (traces the step once more).
        log_xla_hlo: Store the step's HLO as an artifact (lowers the step once more).
        mesh: Devices.
        train_batch_size: Examples a step, a schedule of them, or -1 to derive from ``per_device_parallelism``.
        per_device_parallelism: Examples a device differentiates at once; -1 takes the whole batch.
        per_device_eval_parallelism: The same for evaluation; -1 follows training.
        allow_nondivisible_batch_size: Pad batches that do not divide over the mesh.
        num_train_steps: Updates in the run.
        steps_per_eval: Updates between evaluations.
        max_eval_batches: Batches an evaluation reads; None reads all.
        checkpointer: Where and when to save; None saves nothing.
        load_checkpoint: None resumes if there is something, True insists, False starts afresh.
        load_checkpoint_path: Where to look; None means this run's own roots.
        initialize_from: Another run's full state, used when there is nothing to resume.
        allow_partial_checkpoint: Start leaves afresh that the checkpoint lacks.
        jax_config: Flags set first.
        jax_compilation_cache_dir: Persistent compile cache.
        distributed: Several processes.
        require_accelerator: True insists on one; None and False do not.
        loss_lag: Fetch each loss one step late, so that logging never waits for the device.
    """

    seed: int = 0
    mp: str = "f32"
    model_averaging: ModelAveragingConfig | None = None
    log_dir: str = "logs/"
    id: str | None = None
    tracker: TrackerConfig | list[TrackerConfig] = field(default_factory=JsonFileConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    progress_watchdog: ProgressWatchdogConfig = field(default_factory=ProgressWatchdogConfig)
    status_page: StatusPageConfig = field(default_factory=StatusPageConfig)
    divergence: DivergenceConfig = field(default_factory=DivergenceConfig)
    crash_on_nan: bool = True
    crash_on_inf: bool = True
    log_jaxprs: bool = False
    log_xla_hlo: bool = False
    mesh: MeshConfig = field(default_factory=MeshConfig)
    train_batch_size: int | list[ScheduleStep[int]] = 512
    per_device_parallelism: int = -1
    per_device_eval_parallelism: int = -1
    allow_nondivisible_batch_size: bool = False
    num_train_steps: int = 400_000
    steps_per_eval: int = 1_000
    max_eval_batches: int | None = None
    checkpointer: CheckpointerConfig | None = field(default_factory=CheckpointerConfig)
    load_checkpoint: bool | None = None
    load_checkpoint_path: list[str] | str | None = None
    initialize_from: str | None = None
    allow_partial_checkpoint: bool = False
    jax_config: dict[str, Any] = field(default_factory=dict)
    jax_compilation_cache_dir: str | None = None
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    require_accelerator: bool | None = None
    loss_lag: bool = True

    def __post_init__(self) -> None:
        Policy.parse(self.mp)
        if self.num_train_steps < 1 or self.steps_per_eval < 1:
            raise ConfigError(
                f"num_train_steps={self.num_train_steps}, steps_per_eval={self.steps_per_eval}; expected >= 1.",
                key="trainer",
            )
        if self.train_batch_size == -1 and self.per_device_parallelism == -1:
            raise ConfigError(
                "train_batch_size and per_device_parallelism are both -1; expected one to be set.",
                key="trainer.train_batch_size",
            )
        for name in ("per_device_parallelism", "per_device_eval_parallelism"):
            value = getattr(self, name)
            if value == 0 or value < -1:
                raise ConfigError(f"{name}={value}; expected -1 or at least 1.", key=f"trainer.{name}")

    @property
    def policy(self) -> Policy:
        """The parsed precision policy."""
        return Policy.parse(self.mp)

    @property
    def run_id(self) -> str:
        """Id of the run: ``id``, else ``RUN_ID``, else ``run``."""
        return self.id or run_id_from_environment() or "run"

    def trackers(self) -> Sequence[TrackerConfig]:
        """The tracker configs as a list."""
        return self.tracker if isinstance(self.tracker, list) else [self.tracker]

    def batch_schedule(self, data_axis_size: int) -> BatchSchedule:
        """Examples per step.

        Raises:
            ConfigError: a size that does not divide over the mesh, unless padding is allowed.
        """
        size = self.train_batch_size
        if size == -1:
            size = self.per_device_parallelism * data_axis_size
        schedule = BatchSchedule(size)
        for value in sorted(schedule.unique_batch_sizes()):
            if value % data_axis_size and not self.allow_nondivisible_batch_size:
                raise ConfigError(
                    f"batch size {value} does not divide over {data_axis_size} data shards; pick a multiple or set "
                    "allow_nondivisible_batch_size.",
                    key="trainer.train_batch_size",
                )
        return schedule

    def microbatch_size(self, data_axis_size: int) -> int | None:
        """Examples differentiated at once over the whole mesh; None means the whole batch."""
        return None if self.per_device_parallelism == -1 else self.per_device_parallelism * data_axis_size

    def eval_batch_size(self, data_axis_size: int) -> int:
        """Examples per evaluation batch."""
        if self.per_device_eval_parallelism != -1:
            return self.per_device_eval_parallelism * data_axis_size
        if self.per_device_parallelism != -1:
            return self.per_device_parallelism * data_axis_size
        largest = max(self.batch_schedule(data_axis_size).unique_batch_sizes())
        return -(-largest // data_axis_size) * data_axis_size

    def checkpoint_roots(self) -> list[str]:
        """Where to look for something to resume, in order."""
        if self.load_checkpoint_path is not None:
            path = self.load_checkpoint_path
            return [path] if isinstance(path, str) else list(path)
        return self.checkpointer.roots(self.run_id) if self.checkpointer is not None else []

    def apply_jax_config(self) -> None:
        """Set JAX flags, join other processes, check the hardware.

        Raises:
            ConfigError: an unknown flag, or a missing accelerator.
        """
        flags = dict(self.jax_config)
        if self.jax_compilation_cache_dir is not None:
            flags["jax_compilation_cache_dir"] = self.jax_compilation_cache_dir
        for name, value in flags.items():
            try:
                jax.config.update(name, value)
            except AttributeError as error:
                raise ConfigError(f"JAX has no flag {name!r}.", key="trainer.jax_config") from error
        self.distributed.initialize()
        if self.require_accelerator and jax.default_backend() == "cpu":
            raise ConfigError(
                "no accelerator was found; install a gpu or tpu extra, or set it to false.",
                key="trainer.require_accelerator",
            )


register_translation(TrainerConfig, translate_trainer)
