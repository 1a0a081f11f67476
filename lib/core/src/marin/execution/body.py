"""Running a body so that it can be stopped: in a thread of its own, or as a job.

The driver's thread waits for the body and, at the same time, for a reason to stop it (lease lost, interrupt, time
limit). To stop is to set the cancel token, then, after a moment, to raise ``StepCancelled`` in the body's thread (a
job is terminated). A body that does not even react to that, because it is inside a long call of compiled code, is
left behind: its staging folder is taken away from it, so whatever it still does has no effect.
"""

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rigging.memory import peak_rss_bytes
from rigging.timing import Clock

from marin.errors import StepTimeoutError
from marin.execution.attempt_context import StepAttempt, StepCancelled, attempt_scope
from marin.execution.remote_call import JobOutcome, RemoteCallable, run_job

_WATCH_S = 0.1
POLITE_S = 1.0
"""Seconds between setting the cancel token and raising in the body's thread."""
GIVE_UP_S = 4.0
"""Seconds after which a body that does not stop is left behind."""


@dataclass
class BodyResult:
    """How a body ended.

    Attributes:
        value: What it returned.
        error: What it raised, or None.
        resources: ``{cpu_s, ram_peak, scope}``; of the whole process for a body that ran in it.
        job_id: Id of the job, for remote bodies.
        logs: Output of the job.
        stopped: Whether the driver stopped it.
        left_behind: Whether it was still running when the driver gave up on it.
    """

    value: Any = None
    error: BaseException | None = None
    resources: dict[str, Any] = field(default_factory=dict)
    job_id: str | None = None
    logs: str = ""
    stopped: bool = False
    left_behind: bool = False


def run_body(
    body: Callable[[Any], Any],
    argument: Any,
    attempt: StepAttempt,
    *,
    clock: Clock,
    context: contextvars.Context,
    timeout_s: float | None = None,
) -> BodyResult:
    """Run a body to its end, or until it must stop.

    Args:
        body: The function; a ``RemoteCallable`` runs as a job.
        argument: Its one argument.
        attempt: Holds the cancel token.
        clock: Source of time.
        context: Context variables of the caller (such as the current fray client).
        timeout_s: Longest time, in seconds.
    Returns:
        What happened; never raises what the body raised.
    """
    result = BodyResult()
    started = clock.monotonic()
    cpu_before = time.process_time()
    thread = threading.Thread(
        target=context.run, args=(_in_thread, body, argument, attempt, result), name=f"step {attempt.step}", daemon=True
    )
    thread.start()
    expired = False
    while thread.is_alive() and not attempt.cancel.is_set():
        thread.join(_WATCH_S)
        if timeout_s is not None and clock.monotonic() - started >= timeout_s and thread.is_alive():
            expired = True
            attempt.cancel.set()
    if thread.is_alive():
        result = _stop(thread, result, clock, in_process=not isinstance(body, RemoteCallable))
    if expired:
        result.error = StepTimeoutError(attempt.step, timeout_s or 0.0)
    if not result.resources and not isinstance(body, RemoteCallable):
        result.resources = {
            "cpu_s": round(time.process_time() - cpu_before, 6),
            "ram_peak": peak_rss_bytes(),
            "scope": "process",
        }
    return result


def _in_thread(body: Callable[[Any], Any], argument: Any, attempt: StepAttempt, result: BodyResult) -> None:
    try:
        with attempt_scope(attempt):
            if isinstance(body, RemoteCallable):
                outcome: JobOutcome = run_job(body, (argument,), {}, attempt)
                result.value, result.resources = outcome.value, outcome.resources
                result.job_id, result.logs = outcome.job_id, outcome.logs
            else:
                result.value = body(argument)
    except BaseException as error:  # the thread's boundary: everything a body raises becomes part of its attempt
        result.error = error
        result.logs = "\n".join(getattr(error, "log_tail", ()))
        result.job_id = getattr(error, "job_id", None)


def _stop(thread: threading.Thread, result: BodyResult, clock: Clock, *, in_process: bool) -> BodyResult:
    """Stop a body whose token is set; gives up after ``GIVE_UP_S`` seconds.

    A thread that waits for a job is left to terminate the job, which an exception in its midst would prevent.
    """
    thread.join(POLITE_S)
    deadline = clock.monotonic() + GIVE_UP_S - POLITE_S
    while thread.is_alive() and clock.monotonic() < deadline:
        assert thread.ident is not None
        if in_process:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(StepCancelled))
        thread.join(0.5)
    result.stopped = True
    if thread.is_alive():
        # The thread may still write to its own result object; the driver goes on with one that it cannot reach.
        return BodyResult(error=StepCancelled("the body did not stop in time"), stopped=True, left_behind=True)
    return result
