"""Running pipelines: `ZephyrContext` plans a Dataset, runs its tasks, and brings back the results.

The driver, which is this process, holds the coordinator; workers are fray actors in processes of their own. As a
context manager a ZephyrContext keeps one pool of workers for all executions inside its block, and `execution_scope`
lends it to contexts that others build. With `inline=True` (or `max_workers=0`) everything happens in the calling
process: the same plan, coordinator and files, without processes.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import fray
from rigging.resources import ResourceConfig, parse_bytes
from rigging.timing import Clock, SystemClock

from zephyr import _env
from zephyr._blocks import iterate
from zephyr._driver import Driver, InlineExecutor, Outcome
from zephyr._files import StagedFile, output_error, publish, remove_tree
from zephyr._leftovers import execution_id, sweep
from zephyr._lineage import Proof, prove, write_note
from zephyr._paths import is_remote
from zephyr._pickling import dump_plan, dump_value
from zephyr._pool import WorkerPool
from zephyr._quarantine import Quarantine
from zephyr._run_page import render
from zephyr._task import TaskSettings, load_blocks
from zephyr.coordinator import Policy
from zephyr.counters import totals
from zephyr.dataset import Dataset
from zephyr.errors import ContextClosedError, DatasetError
from zephyr.physical import Plan, WriteShard
from zephyr.plan import compute_plan, explain
from zephyr.worker import PLAN_FILE
from zephyr.worker_context import write_shared

_BUFFER_SHARE = 4
_MUST_MATCH = (
    "device",
    "preemptible",
    "regions",
    "zone",
    "target_cluster",
    "replicas",
    "device_alternatives",
    "image",
)

_scope: ContextVar["ZephyrContext | None"] = ContextVar("zephyr_scope", default=None)


@dataclass(frozen=True)
class ZephyrExecutionResult:
    """What an execution gave.

    Args:
        results: Items of the last stage, in shard order; the paths after a sink.
        counters: Totals by name; `zephyr/records_in`, `zephyr/records_out`, `zephyr/bad_records` and the user's own.
        stages: One summary per stage that ran: seconds, tasks, attempts, records, bytes, skew.
    """

    results: list[Any] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    stages: list[dict[str, object]] = field(default_factory=list)


class ZephyrContext:
    """Where pipelines run.

    Args:
        max_workers: Worker processes; 0 runs inline; default ZEPHYR_MAX_WORKERS, else the number of CPUs.
        resources: Resources of a worker; a quarter of `ram` is what a task may hold in buffers.
        client: A fray client; default the current one, which is local and uses processes unless set otherwise.
        name: Shown with progress and in process names.
        chunk_storage_prefix: Local folder for shuffle files; default ZEPHYR_SCRATCH, else the temporary folder.
        inline: Run everything in this process.
        task_memory: Bytes (or "256m") that a task may hold in buffers, instead of what `resources` says.
        enforce_memory: End a worker that grows beyond the `ram` of `resources`; default whether `resources` is given.
        policy: Failure limits.
        clock: Source of time.
    Raises:
        DatasetError: a number of workers below zero, a remote chunk_storage_prefix, or in an `execution_scope`
            resources that the scope's workers do not have.
    Example:
        >>> from zephyr import Dataset, ZephyrContext
        >>> with ZephyrContext(inline=True) as ctx:
        ...     ctx.execute(Dataset.from_list(["a b", "b"]).flat_map(str.split).count()).results
        [3]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        resources: ResourceConfig | None = None,
        client: "fray.Client | None" = None,
        name: str = "",
        chunk_storage_prefix: str | None = None,
        *,
        inline: bool = False,
        task_memory: int | str | None = None,
        enforce_memory: bool | None = None,
        policy: Policy = Policy(),
        clock: Clock | None = None,
    ) -> None:
        self._host = host = _scope.get()
        if host is not None:
            max_workers, inline, client, policy = host.max_workers, False, host._client, host.policy
            enforce_memory = host.enforce_memory
            chunk_storage_prefix = chunk_storage_prefix or host.scratch
            if resources is None:
                resources = host.resources
                task_memory = host.memory_bytes if task_memory is None else task_memory
            else:
                _check_fits(resources, host.resources)
        if max_workers is None:
            max_workers = _env.max_workers()
        if max_workers is None:
            max_workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if max_workers < 0:
            raise DatasetError(f"cannot size the pool: max_workers={max_workers}; expected 0 or more. 0 runs inline.")
        self.max_workers = 0 if inline else max_workers
        self.enforce_memory = resources is not None if enforce_memory is None else enforce_memory
        self.resources = resources or ResourceConfig(cpu=1, ram="1g")
        self.name = name
        self.memory_bytes = (
            parse_bytes(self.resources.ram) // _BUFFER_SHARE if task_memory is None else parse_bytes(task_memory)
        )
        self.scratch = chunk_storage_prefix or _env.scratch() or f"{tempfile.gettempdir()}/zephyr-{os.getuid()}"
        if is_remote(self.scratch):
            raise DatasetError(
                f"cannot use chunk_storage_prefix={self.scratch!r}; expected a local folder, since shuffle files are "
                "read in pieces. Pass a path on a disk that all workers see."
            )
        self.policy = policy
        self.clock = clock or SystemClock()
        self._client = client
        self._pool: WorkerPool | None = None
        self._keepers = 0
        self._closed = False
        self._lock = threading.RLock()
        self._shared: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        self._check_open()
        self._keepers += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """End the workers; the context cannot be used afterwards. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._end_pool()

    @contextmanager
    def execution_scope(self) -> Iterator[Self]:
        """Let contexts that are built in the block run on this one's workers.

        Such a context has data (`put`) and a name of its own, and its `resources` say what a task of it needs: they
        must fit a worker of this pool, which a task has to itself. Workers, client, policy and memory enforcement are
        this one's, whatever it asked for. Executions on one pool run one after another. Closing such a context leaves
        the pool alone; it cannot be used once this one is closed.

        Scopes nest: the innermost counts, and the scope of a context that runs on another's pool is one of that pool.
        A thread of your own does not inherit it: run the thread in `contextvars.copy_context()`. The pool is kept
        until the block ends, or the `with` block of this context.

        Raises:
            ContextClosedError: the context is closed.
        Example:
            >>> from zephyr import Dataset, ZephyrContext
            >>> def library(numbers):  # knows nothing of a pool
            ...     return ZephyrContext().execute(Dataset.from_list(numbers).map(lambda n: 2 * n)).results
            >>> with ZephyrContext(inline=True).execution_scope():
            ...     library([1, 2])
            [2, 4]
        """
        self._check_open()
        home = self._home
        with home._lock:
            home._keepers += 1
        token = _scope.set(home)
        try:
            yield self
        finally:
            _scope.reset(token)
            with home._lock:
                home._keepers -= 1
                if not home._keepers:
                    home._end_pool()

    def put(self, name: str, value: Any) -> None:
        """Share an object with the functions of executions that begin later; `zephyr.worker_context` reads it.

        It is pickled here and now: what is changed afterwards is not seen. Putting another object under the same name
        replaces it. Outputs with `skip_existing` count as made from it.

        Args:
            name: Any text.
            value: Anything that cloudpickle takes.
        Raises:
            DatasetError: it cannot be pickled, or the name is empty.
            ContextClosedError: the context is closed.
        """
        self._check_open()
        if not name:
            raise DatasetError("cannot share data: name=''; expected a text that is not empty. Name it.")
        try:
            data = dump_value(value)
        except Exception as error:  # Any class may refuse to be pickled, in any way.
            raise DatasetError(
                f"cannot share data: name={name!r} is a {type(value).__name__} that cannot be pickled ({error}); "
                "expected plain data. Share what it is made from, and make it in the function."
            ) from error
        with self._lock:
            self._shared[name] = data

    def plan(self, dataset: Dataset) -> Plan:
        """Plan a data set without running it; lists its input files."""
        return compute_plan(dataset.pipeline)

    def explain(self, dataset: Dataset) -> str:
        """Describe the plan: stages, what was pushed into the readers, shuffles and outputs."""
        return explain(self.plan(dataset))

    def execute(
        self,
        dataset: Dataset,
        *,
        dry_run: bool = False,
        quarantine: Quarantine | None = None,
        run_page: str | None = None,
    ) -> ZephyrExecutionResult:
        """Run a data set to its end. Executions on one pool, as those of one context, run one after another.

        Args:
            dataset: What to run.
            dry_run: Plan only, and return an empty result.
            quarantine: Where records go on which a callable of `map`, `flat_map` or `filter` fails; without it, the
                run fails with them.
            run_page: Path of an HTML page about the run, written at its end however it ends.
        Returns:
            Items of the last stage in shard order, counters, and statistics of the stages.
        Raises:
            ZephyrError: see `zephyr.errors`. Finished output files of other shards stay; half-written ones never do.
        """
        self._check_open()
        plan = self.plan(dataset)
        if dry_run:
            return ZephyrExecutionResult()
        with self._home._lock:
            self._check_open()  # another thread may have closed it while this one waited
            return self._execute(plan, quarantine, run_page)

    def _execute(self, plan: Plan, quarantine: Quarantine | None, run_page: str | None) -> ZephyrExecutionResult:
        execution = execution_id()
        outputs = [
            path
            for stage in plan.stages
            for b in stage.branches
            for op in b.ops
            if isinstance(op, WriteShard)
            for path in op.paths
        ]
        if quarantine is not None:
            outputs.append(quarantine.path(0, 0))
        sweep(self.scratch, outputs)
        proof = prove(plan, self._shared)
        settings = TaskSettings(
            f"{self.scratch}/{execution}",
            self.memory_bytes,
            os.getcwd(),
            proof.written,
            quarantine,
            parse_bytes(self._home.resources.ram) if self.enforce_memory else None,
        )
        try:
            _write_scratch(settings.folder, lambda: write_shared(settings.folder, self._shared))
            outcome = self._run(plan, execution, settings, proof, run_page)
            items = iterate(load_blocks(ref for report in outcome.reports for ref in report.blocks))
            stages = [stage.summary() for stage in outcome.stages]
            result = ZephyrExecutionResult(list(items), totals(outcome.counters), stages)
        finally:
            remove_tree(settings.folder)
        return result

    def _run(self, plan: Plan, execution: str, settings: TaskSettings, proof: Proof, run_page: str | None) -> Outcome:
        num_tasks = max(stage.num_tasks for stage in plan.stages)
        if self.max_workers == 0 or num_tasks == 0:
            executor: InlineExecutor | WorkerPool = InlineExecutor(plan, settings)
        else:
            _write_plan(settings.folder, plan)
            executor = self._home._open_pool(num_tasks)
            executor.begin(execution, settings)
        # Only a pool that ends with the execution lets workers go before its end.
        keep = self._home._keepers > 0
        policy = replace(self.policy, drain=False) if keep or self.max_workers == 0 else self.policy
        driver = Driver(plan, execution, executor, settings, policy=policy, clock=self.clock, name=self.name)
        failure: BaseException | None = None
        try:
            outcome = driver.run(proven=proof.proven, skipped_stages=proof.skipped_stages)
        except BaseException as error:
            failure = error
            raise
        finally:
            if not keep:
                self._home._end_pool()
            for path in driver.published:
                if path in proof.lineage:
                    write_note(path, proof.lineage[path])
            if run_page is not None:
                self._write_run_page(run_page, plan, driver, failure)
        return outcome

    def _write_run_page(self, path: str, plan: Plan, driver: Driver, failure: BaseException | None) -> None:
        text = render(
            name=self.name,
            execution=driver.execution,
            outcome="done" if failure is None else "failed",
            plan=explain(plan),
            stages=driver.monitor.stages,
            counters=totals(driver.counted),
            error="" if failure is None else f"{type(failure).__name__}: {failure}",
        )
        file = StagedFile(f"{path}.tmp", path)
        file.write(text.encode())
        file.finish()
        publish(f"{path}.tmp", path)

    def _open_pool(self, num_tasks: int) -> WorkerPool:
        if self._pool is None:
            size = self.max_workers if self._keepers else min(self.max_workers, num_tasks)
            client = self._client or fray.current_client()
            name = f"zephyr-{self.name or 'pool'}"
            self._pool = WorkerPool(client, size, name=name, resources=self.resources)
        return self._pool

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _check_open(self) -> None:
        for context in (self, self._home):
            if context._closed:
                raise ContextClosedError(context.name)

    @property
    def _home(self) -> "ZephyrContext":
        """The context whose pool this one runs on."""
        return self._host or self


def _check_fits(wanted: ResourceConfig, worker: ResourceConfig) -> None:
    for name in _MUST_MATCH:
        if getattr(wanted, name) != getattr(worker, name):
            raise DatasetError(
                f"cannot run in this scope: {name}={getattr(wanted, name)!r} must match the worker pool; expected "
                f"{getattr(worker, name)!r}. Build the context outside of the scope for a pool of its own."
            )
    over = [name for name in ("ram", "disk") if parse_bytes(getattr(wanted, name)) > parse_bytes(getattr(worker, name))]
    for name in ["cpu"] * (wanted.cpu > worker.cpu) + over:
        raise DatasetError(
            f"cannot run in this scope: resources exceed one Zephyr worker, {name}={getattr(wanted, name)!r}; expected "
            f"at most {getattr(worker, name)!r}. Ask for less, or give the scope's context larger workers."
        )


def _write_plan(folder: str, plan: Plan) -> None:
    data = dump_plan(plan)

    def write() -> None:
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/{PLAN_FILE}", "wb") as stream:
            stream.write(data)

    _write_scratch(folder, write)


def _write_scratch(folder: str, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise output_error(folder, error) from error
