"""The training loop.

    with Trainer(config, optimizer, loss_fn) as trainer:
        loader = trainer.data_loader(dataset)
        state = trainer.initial_state(training_key, model_init=make_model, loader=loader)
        result = trainer.train(state, loader)

The loop dispatches a step, then looks at the numbers of the step before it, so that logging never makes the device
wait.
Only when something needs the state itself (a checkpoint, an evaluation, a hook) does it wait for the step it is at.

Order after a step that something is due at: numbers are logged, hooks run, the checkpoint is taken last. Whatever a
hook
wrote before step ``n`` is therefore durable before the checkpoint of step ``n`` exists, and a resumed run neither
repeats nor misses a line.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import optax
from rigging.progress import Progress

from levanter._checkpoint import processes
from levanter._checkpoint.policy import Retention
from levanter._trainer.ahead import CompileAhead
from levanter._trainer.base import FROM_SEED, RECORD, BaseModel, base_record, holds_base, rejoin, saved_part
from levanter._trainer.failures import failure_summary
from levanter._trainer.program import keep_program
from levanter._trainer.reporter import Pending, Reporter
from levanter.callbacks.core import Hook, MetricsHook, StepInfo
from levanter.callbacks.profiler import Profiler
from levanter.callbacks.status_page import RunStatus, StatusServer
from levanter.callbacks.watchdog import ProgressWatchdog
from levanter.checkpoint import (
    Checkpointer,
    discover_checkpoint_candidates,
    latest_checkpoint_path,
    load_newest,
    read_metadata,
)
from levanter.config import encode
from levanter.data.dataset import AsyncDataset
from levanter.data.loader import DataLoader
from levanter.divergence import DivergenceState
from levanter.errors import CancelledError, DataFailedError, PreemptedError
from levanter.metrics import fold_metric
from levanter.precision import cast_floating
from levanter.preemption import PreemptionFlag, watch_for_preemption
from levanter.schedule import BatchSchedule
from levanter.sharding import tree_shardings
from levanter.step import LOSS, LossFn, StepSpec, build_eval_step, build_train_step
from levanter.throughput import ThroughputMeter, WorkPerExample
from levanter.tracker.json_file import JsonFileTracker
from levanter.tracker.noop import NoopTracker
from levanter.tracker.tracker import CompositeTracker, Tracker
from levanter.tracker.tracker_fns import current_tracker
from levanter.trainer_config import TrainerConfig
from levanter.trainer_state import TrainerState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainOutcome:
    """What a finished run leaves.

    Attributes:
        state: State after the last step.
        loss: Loss of the last step, nats.
        checkpoint_path: Last checkpoint written, or None.
    """

    state: TrainerState
    loss: float
    checkpoint_path: str | None


class Trainer:
    """Runs a loss function over data.

    Args:
        config: How to train.
        optimizer: Optax transform.
        loss_fn: ``loss_fn(model, batch, key=key)``; see :class:`levanter.step.StepSpec`.
        work: Cost of an example, for throughput metrics.
        cancel: Stops the run between steps when set.
        progress: Show a progress line.
    """

    def __init__(
        self,
        config: TrainerConfig,
        optimizer: optax.GradientTransformation,
        loss_fn: LossFn,
        *,
        work: WorkPerExample | None = None,
        cancel: threading.Event | None = None,
        progress: bool = True,
    ) -> None:
        config.apply_jax_config()
        self.config = config
        self.optimizer = optimizer
        self.mesh = config.mesh.device_mesh()
        self.compute_mapping = config.mesh.resolved_compute_mapping(self.mesh)
        self.param_mapping = config.mesh.resolved_param_mapping(self.mesh)
        self._single = self.mesh.size == 1
        data_ways = config.mesh.data_axis_size(self.mesh)
        self.batch_schedule: BatchSchedule = config.batch_schedule(data_ways)
        self._eval_batch = config.eval_batch_size(data_ways)
        watch = config.watch if config.watch.is_enabled else None
        self.step_spec = StepSpec(
            loss_fn,
            config.mesh.batch_axis_name,
            config.microbatch_size(data_ways),
            watch,
            None if self._single else self.mesh,
            self.compute_mapping,
            self.param_mapping,
        )
        self.train_step = build_train_step(self.step_spec)
        self._eval_step = build_eval_step(self.step_spec, config.policy)
        self.meter = ThroughputMeter(work or WorkPerExample(), num_devices=self.mesh.size)
        self.tracker: Tracker = _open_trackers(config)
        self.checkpointer: Checkpointer | None = (
            config.checkpointer.create(config.run_id) if config.checkpointer is not None else None
        )
        self._base = BaseModel(lambda: None, FROM_SEED)
        self._base_record: dict[str, str] = {}
        self._hooks: list[Hook] = []
        self._cancel = cancel
        self._show_progress = progress
        self._finished = False
        self._exit = contextlib.ExitStack()
        self._ahead = CompileAhead()
        self._name = processes.next_name(f"trainer/{config.run_id}")
        self._flag = PreemptionFlag()
        self._watchdog = ProgressWatchdog(config.progress_watchdog)
        self.reporter = Reporter(config, self.batch_schedule, watch, self.meter, self._watchdog)
        self._profiler = Profiler(config.profiler, f"{config.log_dir}/{config.run_id}", self.tracker)

    def __enter__(self) -> "Trainer":
        self._exit.enter_context(current_tracker(self.tracker))
        self._flag = self._exit.enter_context(watch_for_preemption())
        self._watchdog.start()
        self._exit.callback(self._watchdog.stop)
        self._exit.callback(self._ahead.wait)
        if self.config.status_page.enabled and processes.is_first():
            self._serve_status()
        return self

    def _serve_status(self) -> None:
        status = self.reporter.status = RunStatus(self.config.run_id, self.config.num_train_steps, encode(self.config))
        request = self.checkpointer.request_checkpoint if self.checkpointer is not None else None
        server = StatusServer(self.config.status_page, status, request)
        server.start()
        self._exit.callback(server.stop)

    def __exit__(self, exc_type: Any, exc: BaseException | None, trace: Any) -> None:
        try:
            self._profiler.stop()
            self.tracker.log_summary(self.meter.summary())
            if self.checkpointer is not None:
                self.checkpointer.wait_until_finished()
        except BaseException as error:
            if exc is None:
                exc = error
                raise
            # The body's own failure is the news; this one is a consequence, or comes second.
            logger.exception("leaving the run after a failure failed as well")
        finally:
            try:
                if exc is not None:
                    self._record_failure(exc)
                self.tracker.finish()
            finally:
                self._exit.close()

    def _record_failure(self, error: BaseException) -> None:
        try:
            self.tracker.log_summary(failure_summary(error))
        except Exception:  # a broken tracker must not hide what broke the run
            logger.exception("the reason of the failure could not be recorded")

    def add_hook(self, fn: Callable[..., Any], *, every: int = 1) -> None:
        """Call ``fn(info)`` after updates ``every``, ``2 every``, ...; the loop waits for those steps."""
        self._hooks.append(Hook.of(fn, every))

    def add_metrics_hook(self, fn: MetricsHook) -> None:
        """Call ``fn(step, metrics)`` with every step's numbers, one step late; the loop does not wait."""
        self.reporter.metrics_hooks.append(fn)

    def data_loader(self, dataset: AsyncDataset[Any], batch: BatchSchedule | int | None = None) -> DataLoader[Any]:
        """Batches of ``dataset`` on this trainer's devices."""
        return DataLoader(
            dataset,
            batch if batch is not None else self.batch_schedule,
            batch_axis_name=self.config.mesh.batch_axis_name,
            mesh=None if self._single else self.mesh,
            axis_resources=self.compute_mapping,
            allow_nondivisible_batch_size=self.config.allow_nondivisible_batch_size,
        )

    def initial_state(
        self,
        training_key: jax.Array,
        *,
        model_init: Callable[[], Any],
        loader: DataLoader[Any] | None = None,
        base: BaseModel | None = None,
    ) -> TrainerState:
        """Resume, initialise from another run, or start afresh.

        Args:
            training_key: Key of the first step.
            model_init: Makes a fresh model; traced, so it must be pure.
            loader: What :meth:`train` will be given; its step is compiled while the state is made.
            base: Where the frozen weights of a model with adapters come from, which its checkpoints do not hold; None
                means ``model_init``. Read on resuming only: a fresh state has the weights of ``model_init``.

        Returns:
            The state to train from, laid out on the mesh.

        Raises:
            CheckpointNotFoundError: ``load_checkpoint=true`` and there is none.
            CheckpointMismatchError: the newest checkpoint belongs to another model, optimizer or frozen base.
            CheckpointCorruptError: no checkpoint can be read; a damaged one is passed over for an older one, from
                which the run comes to the same result.
        """

        def fresh() -> TrainerState:
            return TrainerState.init(
                self.optimizer,
                model_init(),
                key=training_key,
                mp=self.config.policy,
                averaging=self.config.model_averaging,
            )

        self._base = base or self._base
        template = eqx.filter_eval_shape(fresh)
        shardings = tree_shardings(template, self.param_mapping, self.mesh)
        paths = self._resume_paths()
        sharded = template if self._single else _with_shardings(template, shardings)
        if loader is not None:
            step = read_metadata(paths[0]).step if paths else 0
            self._ahead.start(lambda: self.train_step.lower(sharded, loader.batch_shapes(step)))
        if not paths:
            return jax.jit(
                fresh, out_shardings=None if self._single else shardings, compiler_options=_init_compiler_options()
            )()
        started = time.perf_counter()
        partial, whole = self.config.allow_partial_checkpoint, holds_base(paths[0])
        wanted = jax.jit(fresh)() if partial else sharded
        state, path = load_newest(wanted if whole else saved_part(wanted), paths, allow_partial=partial)
        if not whole:
            model = jax.jit(model_init)() if base is None else base.load()
            state = rejoin(state, sharded, path, model, self._base.source)
        self._note_resumed(path)
        self.meter.spend("restore", time.perf_counter() - started)
        return state

    def train(self, state: TrainerState, loader: DataLoader[Any]) -> TrainOutcome:
        """Run to the last step.

        Args:
            state: Where to start; its step picks the data.
            loader: Batches by step.

        Raises:
            DivergedError: the loss went wrong; metrics are flushed first.
            CancelledError: the cancel event was set; a checkpoint was taken first.
            PreemptedError: a signal arrived; a checkpoint was committed first.
        """
        start = int(state.step)
        total = self.config.num_train_steps
        self.meter.total_examples = self.batch_schedule.global_data_offset_by_step(start)
        self.tracker.resume_at(start)
        if self.checkpointer is not None:
            self._base_record = base_record(state.model, self._base.source)
            self.checkpointer.reserve(saved_part(state))
        with contextlib.ExitStack() as stack:
            line = stack.enter_context(_progress(total, start)) if self._show_progress else None
            state = self._loop(state, iter(loader.iter_from_step(start)), start, line)
        if not self._finished:
            for hook in self._hooks:
                hook.call(StepInfo(state, self.reporter.last_loss, 0.0), force=True)
        # Taken after the hooks, and marked: whoever restores it knows that they ran.
        path = self._checkpoint(state, force=True)
        if self.checkpointer is not None:
            self.checkpointer.wait_until_finished()
        self.tracker.flush()
        return TrainOutcome(state, self.reporter.last_loss, path)

    def training_steps(self, state: TrainerState, loader: Iterable[Any]) -> Iterator[StepInfo]:
        """Yield after every step, waiting for each; for people who want their own loop."""
        for batch in loader:
            started = time.perf_counter()
            state, outputs = self.train_step(state, batch)
            yield StepInfo(state, float(outputs[LOSS]), time.perf_counter() - started)

    def evaluate(self, model: Any, loader: Iterable[Any], *, max_batches: int | None = None) -> dict[str, float]:
        """Weighted mean of the loss and the loss function's metrics over batches; nats per token."""
        loss, metrics = None, {}
        model = cast_floating(model, self.config.policy.compute)
        for index, batch in enumerate(loader):
            if max_batches is not None and index >= max_batches:
                break
            part, extra = self._eval_step(model, batch)
            loss = part if loss is None else fold_metric(loss, part)
            metrics = {k: fold_metric(metrics[k], m) if k in metrics else m for k, m in extra.items()}
        if loss is None:
            return {}
        return {"loss": float(loss.result()), **{k: float(m.result()) for k, m in metrics.items()}}

    def add_eval_hook(self, dataset: AsyncDataset[Any], name: str | None = None) -> None:
        """Log ``eval/loss`` (or ``eval/<name>/loss``) every ``steps_per_eval`` updates and at the end."""
        loader = self.data_loader(dataset, self._eval_batch)
        prefix = f"eval/{name}" if name else "eval"
        logged: list[int] = []

        def run(info: StepInfo, force: bool = False) -> None:
            if logged and logged[-1] == info.step:
                return
            started = time.perf_counter()
            values = self.evaluate(info.eval_model, loader, max_batches=self.config.max_eval_batches)
            logged.append(info.step)
            metrics = {f"{prefix}/{key}": value for key, value in values.items()}
            self.tracker.log({**metrics, "eval/timing/loss_time": time.perf_counter() - started}, step=info.step)
            logger.info("%s at step %d: %s", prefix, info.step, values)

        self.add_hook(run, every=self.config.steps_per_eval)

    def _loop(self, state: TrainerState, batches: Iterator[Any], start: int, line: Progress | None) -> TrainerState:
        pending: Pending | None = None
        self.reporter.restart_clock()
        for step in range(start, self.config.num_train_steps):
            self._stop_if_asked(state, step, pending)
            fetched = time.perf_counter()
            batch = self._next_batch(batches, state, step, pending)
            loading = time.perf_counter() - fetched
            self._watchdog.step_started()
            if step == start:
                self._ahead.wait()
                keep_program(
                    self.train_step,
                    state,
                    batch,
                    f"{self.config.log_dir}/{self.config.run_id}/program",
                    self.tracker,
                    jaxpr=self.config.log_jaxprs,
                    hlo=self.config.log_xla_hlo,
                )
            state, outputs = self.train_step(state, batch)
            compiling = 0.0
            if step == start:
                jax.block_until_ready((state, outputs))
                ran = time.perf_counter() - fetched - loading
                logger.info("first step: %.3f s for its batch, %.3f s to compile and run it", loading, ran)
                # A CPU's peak is measured, which takes an idle one: this is the first moment when nothing runs.
                self.tracker.log_summary(self.meter.describe())
                compiling = time.perf_counter() - fetched - loading
            if pending is not None:
                self._report(pending, line)
            pending = Pending(step, outputs, self.batch_schedule.batch_size_at_step(step), loading, compiling)
            if step + 1 < self.config.num_train_steps and self._must_wait(step + 1):
                self._report(pending, line)
                pending = None
                self._run_due(state, step + 1)
        if pending is not None:
            self._report(pending, line)
        return state

    def _next_batch(self, batches: Iterator[Any], state: TrainerState, step: int, pending: Pending | None) -> Any:
        """The step's batch; where there is none, everything so far is logged and saved before the run fails."""
        try:
            return next(batches)
        except Exception as error:
            reason = "the data ended" if isinstance(error, StopIteration) else repr(error)
            if pending is not None:
                self._report(pending, None)
            self._leave(state, step)
            raise DataFailedError(step, reason) from error

    def _must_wait(self, next_step: int) -> bool:
        saves = self.checkpointer is not None and self.checkpointer.decide(next_step) is not None
        hooks = any(hook.due(next_step) for hook in self._hooks)
        return saves or hooks or self._profiler.wants(next_step) or not self.config.loss_lag

    def _run_due(self, state: TrainerState, next_step: int) -> None:
        started = time.perf_counter()
        self._profiler.on_step(next_step)
        info = StepInfo(state, self.reporter.last_loss, self.reporter.since_last_s)
        for hook in self._hooks:
            if hook.due(next_step):
                hook.call(info)
        self.reporter.hooks_took(time.perf_counter() - started)
        self._checkpoint(state, force=False)
        self.reporter.restart_clock()

    def _report(self, pending: Pending, line: Progress | None) -> None:
        path = self.checkpointer.last_path if self.checkpointer is not None else None
        self.reporter.report(pending, self.tracker, line, path)

    def _stop_if_asked(self, state: TrainerState, step: int, pending: Pending | None) -> None:
        cancelled = self._cancel is not None and self._cancel.is_set()
        if not self._all_stop(step, cancelled or self._flag.is_set()):
            return
        if pending is not None:
            self._report(pending, None)
        path = self._leave(state, step)
        if cancelled:
            raise CancelledError(step)
        raise PreemptedError(step, self._flag.signal_name or "received by another process", path)

    def _leave(self, state: TrainerState, step: int) -> str | None:
        """Save and make everything durable before the run ends early; the checkpoint's path."""
        path = self._checkpoint(state, force=False, on_exit=True) if step > 0 else None
        if self.checkpointer is not None:
            self.checkpointer.wait_until_finished()
        self.tracker.flush()
        return path

    def _all_stop(self, step: int, wanted: bool) -> bool:
        """Whether the run stops before ``step``: one process's wish, seen by all at the same step."""
        if jax.process_count() == 1:
            return wanted
        if wanted:
            processes.raise_flag(f"{self._name}/stop")
        decided = processes.is_first() and (wanted or processes.flag_raised(f"{self._name}/stop"))
        return processes.from_first(f"{self._name}/stop-at/{step}", str(decided)) == "True"

    def _checkpoint(self, state: TrainerState, *, force: bool, on_exit: bool = False) -> str | None:
        if self.checkpointer is None:
            return None
        started = time.perf_counter()
        extra = {
            "divergence": self.reporter.divergence.to_json(),
            "last_loss": _json_float(self.reporter.last_loss),
            "finished": force,
            **({RECORD: self._base_record} if self._base_record else {}),
        }
        path = self.checkpointer.on_step(
            saved_part(state),
            int(state.step),
            force=force,
            request=Retention.TEMPORARY if on_exit else None,
            before_commit=self.tracker.flush,
            extra=extra,
        )
        self.meter.spend("checkpoint", time.perf_counter() - started)
        return path or self.checkpointer.last_path

    def _resume_paths(self) -> list[str]:
        """Checkpoints to start from, the best first; empty for a fresh start."""
        roots = self.config.checkpoint_roots()
        found: list[str] = []
        if self.config.load_checkpoint is not False:
            found = [candidate.path for candidate in reversed(discover_checkpoint_candidates(*roots))]
        if not found and self.config.load_checkpoint is True:
            latest_checkpoint_path(*roots)  # raises, and says what it saw
        if not found and self.config.initialize_from:
            found = [latest_checkpoint_path(self.config.initialize_from)]
        return found

    def _note_resumed(self, path: str) -> None:
        metadata = read_metadata(path)
        logger.info("resuming after %d updates from %s", metadata.step, path)
        if "divergence" in metadata.extra:
            self.reporter.divergence = DivergenceState.from_json(metadata.extra["divergence"])
        loss = metadata.extra.get("last_loss")
        self.reporter.last_loss = math.nan if loss is None else float(loss)
        self._finished = bool(metadata.extra.get("finished")) and metadata.step >= self.config.num_train_steps
        if self.checkpointer is not None and path.startswith(tuple(self.checkpointer.roots)):
            self.checkpointer.note_restored(metadata.step, path, is_temporary=metadata.is_temporary)


def metrics_path(tracker: Tracker) -> str | None:
    """Path of the metrics file when one of the trackers writes one."""
    members = tracker.trackers if isinstance(tracker, CompositeTracker) else (tracker,)
    return next((member.metrics_path for member in members if isinstance(member, JsonFileTracker)), None)


def _open_trackers(config: TrainerConfig) -> Tracker:
    """The trackers of the first process; the others would write the same numbers again."""
    if not processes.is_first():
        return NoopTracker()
    trackers = [item.init(config.run_id, config.log_dir) for item in config.trackers()]
    return trackers[0] if len(trackers) == 1 else CompositeTracker(trackers)


def _with_shardings(template: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), template, shardings)


def _progress(total: int, start: int) -> Progress:
    return Progress(total - start, unit="steps", description=f"train from step {start}" if start else "train")


def _init_compiler_options() -> dict[str, Any] | None:
    """Initialisation runs once: on CPU, where optimising it costs more than running it, compile it plainly."""
    return {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None


def _json_float(value: float) -> float | None:
    return value if math.isfinite(value) else None
