"""What runs in a child process: jobs one after another, or one actor until it ends.

Started with the arguments ``PARENT FD`` (see ``fray._local.child.worker_command``). The first message tells whether
this child is a worker for jobs or an actor.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Final

from fray._codec import dumps_value, loads, pack_error
from fray._local.actor_server import serve_actor
from fray._local.frames import Kind, read_frame, send_frame
from fray._local.task import Task

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill us when the parent dies, and end now if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_task(task: Task) -> tuple[Kind, bytes]:
    """Run one task and return its outcome; nothing that the task does raises here."""
    os.environ.update(task.environ)
    if task.memory_limit_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (task.memory_limit_bytes, hard))
    try:
        fn, args, kwargs = loads(task.payload)
        value = fn(*args, **kwargs)
        return Kind.RESULT, dumps_value(value, f"the result of {task.label}")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code == 0:
            return Kind.RESULT, dumps_value(None, "nothing")
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        return Kind.EXIT, str(code).encode()
    except BaseException as error:  # process boundary: the driver gets it and raises it
        return Kind.ERROR, pack_error(error)
    finally:
        _end_nested_jobs()
        with contextlib.suppress(Exception):  # a task may have closed or replaced its own streams
            sys.stdout.flush()
            sys.stderr.flush()


def _end_nested_jobs() -> None:
    # Jobs and actors that a task started end with it. Only a task that used a client has loaded the module.
    module = sys.modules.get("fray.current_client")
    if module is not None:
        module.shutdown_default_client()


def serve_jobs(control: socket.socket, first: tuple[int, bytes]) -> None:
    """Run tasks until told to end or the driver is gone."""
    clean_environ = dict(os.environ)
    clean_folder = os.getcwd()
    threads_before = _thread_count()
    number, payload = first
    while True:
        task: Task = loads(payload)
        kind, outcome = run_task(task)
        # Only a child that looks as before may run another job: no threads left over, nothing half-finished.
        reusable = kind is Kind.RESULT and task.memory_limit_bytes is None and _thread_count() <= threads_before
        send_frame(control, kind, number * 2 + int(reusable), outcome)
        if not reusable:
            return
        _restore_environ(clean_environ)
        os.chdir(clean_folder)
        message = read_frame(control)
        if message is None or message[0] is not Kind.JOB:
            return
        _, number, payload = message


def _restore_environ(clean: dict[str, str]) -> None:
    now = dict(os.environ)
    for name in now.keys() - clean.keys():
        del os.environ[name]
    for name, value in clean.items():
        if now.get(name) != value:
            os.environ[name] = value


def _thread_count() -> int:
    try:
        return len(os.listdir("/proc/self/task"))  # native threads of libraries too
    except OSError:
        return threading.active_count()


def main(argv: Sequence[str]) -> None:
    """Entry of the child."""
    parent, descriptor = int(argv[1]), int(argv[2])
    die_with_parent(parent)
    control = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)  # what the job starts must not hold the driver's socket open
    message = read_frame(control)
    if message is None:
        return
    kind, number, payload = message
    if kind is Kind.JOB:
        serve_jobs(control, (number, payload))
    elif kind is Kind.ACTOR:
        serve_actor(control, payload)
    # Threads that a task left behind must not keep the process alive.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
