"""Jobs as Ray tasks. All state belongs to the dispatch thread, except what ``Job`` guards itself.

Ray does not retry for us: it can neither tell an exception of the user's code from a machine that was taken away in
the way the contract wants, nor start the tasks of a gang together. So every attempt is a task with no retries.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ray
import ray.exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rigging.job_identity import JobIdentity

from fray._job import Failure, Job
from fray.ray_backend import _board as board
from fray.ray_backend._dispatch import post, when_ready
from fray.ray_backend._options import bundle
from fray.ray_backend._worker import Ended, Ending, RayTask, Surroundings, free_address, run_task
from fray.types import JobStatus

_ADDRESS: Final = -1
_VALUE: Final = -2
_INSIDE_BUNDLE: Final = ("num_cpus", "num_gpus", "memory", "resources", "runtime_env")
_WAIT_SLICE_S: Final = 1.0
_SETTLE_S: Final = 0.02

# The tasks; ``fresh`` ones end their process, so that no other job runs in it.
_task = ray.remote(num_returns=2, max_retries=0)(run_task)
_fresh_task = ray.remote(num_returns=2, max_retries=0, max_calls=1)(run_task)
_address_task = ray.remote(max_retries=3)(free_address)


@dataclass
class RayRun:
    """A job with what is needed to run it, and its present attempt.

    ``refs`` holds every outcome that Ray still owes: of the ranks, of the address of rank 0 (before they start), and of
    the value (after rank 0 has ended). An attempt is over when it is empty.
    """

    job: Job
    payload: bytes | None
    options: Mapping[str, Any]
    surroundings: Surroundings
    tree: Any
    key: str
    attempt: int = -1
    failures: int = 0
    preemptions: int = 0
    group: Any = None
    refs: dict[int, Any] = field(default_factory=dict)
    value: bytes | None = None
    retrying: bool = False
    done: bool = False
    stopping: JobStatus | None = None
    failure: Failure | None = None


class RayJobs:
    """Runs the jobs of one client."""

    def __init__(self, prefix: str, forget_endpoints: Callable[[str], object]) -> None:
        self._forget_endpoints = forget_endpoints
        self._started = board.Presence(prefix)
        self._live: dict[str, RayRun] = {}

    def submit(self, run: RayRun) -> None:
        """Start a job."""
        run.job.on_terminate(lambda: self.stop(run))
        run.job.on_ask(lambda: self._ask(run))
        self._live[run.job.job_id] = run
        post(lambda: self._start_attempt(run))

    def stop(self, run: RayRun) -> None:
        """Stop a job and return when Ray has given up its tasks."""
        post(lambda: self._stop(run, JobStatus.STOPPED, None))
        run.job.wait(raise_on_failure=False)

    def shutdown(self) -> None:
        """Stop every job."""
        for run in list(self._live.values()):
            self.stop(run)

    def _ask(self, run: RayRun) -> None:
        """Look at the board for the state and output of a job that runs; any thread."""
        for rank in range(run.job.request.num_replicas):
            key = _key(run, rank)
            if key in self._started:
                run.job.set_running()
                run.job.live_output[rank] = (board.get(key) or b"").decode("utf-8", "replace").splitlines()

    def _start_attempt(self, run: RayRun) -> None:
        run.attempt += 1
        run.retrying, run.value = False, None
        count = run.job.request.num_replicas
        if count == 1:
            self._start_tasks(run, None)
            return
        run.group = placement_group([bundle(run.options)] * count, strategy="PACK")
        # Rank 0 says where it can be reached once there is room for all; none starts before.
        place = PlacementGroupSchedulingStrategy(run.group, placement_group_bundle_index=0)
        reserved = _address_task.options(
            num_cpus=0, scheduling_strategy=place, runtime_env=run.options.get("runtime_env")
        ).remote()
        self._expect(run, _ADDRESS, reserved)

    def _start_tasks(self, run: RayRun, coordinator: str | None) -> None:
        job, count = run.job, run.job.request.num_replicas
        remote: Any = _fresh_task if job.request.fresh_process else _task
        for rank in range(count):
            identity = JobIdentity(rank, count, job.job_id, coordinator, run.attempt)
            task = RayTask(
                label=job.job_id,
                payload=run.payload,
                command=job.request.entrypoint.command,
                environ=identity.to_environment(),
                surroundings=run.surroundings,
                key=_key(run, rank),
                keep_value=rank == 0,
                ports=tuple(job.request.ports),
            )
            options = dict(run.options)
            if run.group is not None:
                options = {name: options[name] for name in _INSIDE_BUNDLE if name in options}
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    run.group, placement_group_bundle_index=rank
                )
            ended, value = remote.options(name=job.request.name, **options).remote(task, run.tree)
            self._expect(run, rank, ended, value)

    def _expect(self, run: RayRun, what: int, ref: Any, value: Any = None) -> None:
        run.refs[what] = ref
        attempt = run.attempt

        def outcome(result: Any, error: BaseException | None) -> None:
            if attempt == run.attempt and run.refs.pop(what, None) is not None:
                self._outcome(run, what, result, error, value)

        when_ready(ref, outcome)

    def _outcome(self, run: RayRun, what: int, result: Any, error: BaseException | None, value: Any) -> None:
        if what >= 0:
            self._keep_output(run, what, result)
        going_on = run.stopping is None and not run.retrying
        if error is not None:
            if value is not None:
                when_ready(value, lambda *_: None)  # its error is the same one, and Ray complains of errors unseen
            if going_on:
                self._failed(run, _failure_of(error), preempted=_is_preemption(error))
        elif going_on and what == _ADDRESS:
            self._start_tasks(run, result)
        elif going_on and what == _VALUE:
            run.value = result
        elif going_on and result.how is not Ending.RESULT:
            self._failed(run, Failure(result.exit_code, result.signal, result.error), preempted=False)
        elif going_on and what == 0:
            run.value = result.value
            if run.value is None:
                self._expect(run, _VALUE, value)
        self._go_on(run)

    def _keep_output(self, run: RayRun, rank: int, ended: Ended | None) -> None:
        key = _key(run, rank)
        output = ended.output if ended is not None else board.get(key) or b""
        if ended is None or ended.posted:
            board.wipe(key)
        if ended is None or ended.published:
            self._forget_endpoints(run.job.job_id)
        run.job.live_output.pop(rank, None)
        run.job.logs_by_rank[rank].feed(output)
        run.job.logs_by_rank[rank].finish()

    def _failed(self, run: RayRun, failure: Failure, *, preempted: bool) -> None:
        request = run.job.request
        run.preemptions += preempted
        run.failures += not preempted
        if run.preemptions <= request.max_retries_preemption and run.failures <= request.max_retries_failure:
            run.retrying = True
            self._cancel(run)
        else:
            self._stop(run, JobStatus.FAILED, failure)

    def _stop(self, run: RayRun, status: JobStatus, failure: Failure | None) -> None:
        if run.stopping is None:
            run.stopping, run.failure = status, failure
            self._cancel(run)
            self._go_on(run)

    def _cancel(self, run: RayRun) -> None:
        for what, ref in list(run.refs.items()):
            if what == _VALUE:
                del run.refs[what]
            else:
                with contextlib.suppress(ray.exceptions.RayError):  # it has ended just now
                    ray.cancel(ref, force=True)

    def _go_on(self, run: RayRun) -> None:
        if run.refs or run.done:
            return
        if run.group is not None:
            remove_placement_group(run.group)
            run.group = None
        if run.retrying and run.stopping is None:
            self._start_attempt(run)
            return
        run.done = True
        self._live.pop(run.job.job_id, None)
        if run.stopping is None:
            if run.payload is None:
                run.job.value.set_value(None)
            else:
                run.job.value.set_raw(True, run.value or b"")
        run.job.finish(run.stopping or JobStatus.SUCCEEDED, run.failure)


def block_in_worker(run: RayRun) -> Callable[[Any, float | None], bool]:
    """Return a way to wait for the job from a task of Ray.

    Ray lends the cores of a task to others while the task's own thread waits *in Ray*; a thread that waits for an event
    keeps them, and a full cluster would stand still with every task waiting for a job that finds no room.
    """

    def block(done: Any, timeout: float | None) -> bool:
        end_s = None if timeout is None else time.monotonic() + timeout
        while not done.is_set():
            left_s = _WAIT_SLICE_S if end_s is None else min(_WAIT_SLICE_S, end_s - time.monotonic())
            if left_s <= 0:
                return False
            refs = list(run.refs.values())
            if refs:
                ray.wait(refs, timeout=left_s, fetch_local=False)
            done.wait(min(_SETTLE_S, left_s))
        return True

    return block


def _key(run: RayRun, rank: int) -> str:
    return f"{run.key}.{rank}.{run.attempt};"


def _is_preemption(error: BaseException) -> bool:
    """Tell whether the machine went away, rather than the process."""
    kinds = (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError)
    return isinstance(error, kinds) or bool(getattr(error, "preempted", False))


def _failure_of(error: BaseException) -> Failure:
    text = str(error).strip() or type(error).__name__
    return Failure(error=error, traceback_text=f"{type(error).__name__}: {' '.join(text.split())}")
