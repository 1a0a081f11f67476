"""What runs in a Ray worker process: one task of a job, with its output captured and its litter guarded.

A Ray worker runs many tasks one after another, so whatever a task is given (folder, variables, search path) is taken
back afterwards. What it must have before its process starts (``JAX_PLATFORMS``) is Ray's runtime environment instead.
"""

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import ray

from fray._codec import dumps_value, loads, pack_error
from fray._local import guardian as guardian_module
from fray._local.guardian import MARK_VARIABLE, kill_quietly, marked_processes
from fray._logs import LogTail
from fray._overlay import overlay
from fray._tree import unpack_tree
from fray.current_client import set_default_client_factory, shutdown_default_client
from fray.ports import PortLeases
from fray.ray_backend import _board as board

_POST_S: Final = 0.2
_POST_BYTES: Final = 65_536
_SMALL_BYTES: Final = 65_536
_FIRST_POST_S: Final = 0.05
_PIPE_BYTES: Final = 1 << 16


class Ending(StrEnum):
    """How a task ended, when its process survived it."""

    RESULT = "result"
    ERROR = "error"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a task or actor finds around it, besides Ray's runtime environment.

    Args:
        search_path: The driver's; entries that exist on the node are appended to the worker's.
        cwd: Folder to run in, if it exists on the node; None leaves it.
        tree_digest: Digest of a shipped working tree that takes the place of ``cwd``; empty for none.
        make_client: Makes the client that code in the task gets from ``current_client``.
        environ: Variables that are set unless the process has them.
        requirements: Packages to install on the node, once, and to put before its own.
    """

    search_path: tuple[str, ...]
    cwd: str | None
    tree_digest: str
    make_client: Callable[[], Any]
    environ: Mapping[str, str]
    requirements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RayTask:
    """One attempt of one replica."""

    label: str
    payload: bytes | None
    command: tuple[str, ...] | None
    environ: Mapping[str, str]
    surroundings: Surroundings
    key: str
    keep_value: bool
    ports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a task: how, its last output, and whether the board knows of that and of endpoints.

    A small value comes along; a large one stays in Ray's object store until it is fetched.
    """

    how: Ending
    exit_code: int | None
    signal: int | None
    error: bytes | None
    value: bytes | None
    output: bytes
    posted: bool
    published: bool


def run_task(task: RayTask, tree: bytes | None) -> tuple[Ended, bytes]:
    """Run one task; nothing that the task does raises here.

    Returns:
        Its end, and the packed value if that is wanted.
    """
    guard_this_process()
    capture = output_capture()
    capture.begin(task.key, task.label)
    how, exit_code, signal, error, value = Ending.RESULT, None, None, None, b""
    try:
        with PortLeases(task.ports) as leases, surrounded(task.surroundings, tree, {**task.environ, **leases.environ}):
            if task.command is not None:
                code = _run_command(task.command)
                exit_code, signal = (code, None) if code >= 0 else (None, -code)
                how = Ending.RESULT if code == 0 else Ending.EXIT
            else:
                assert task.payload is not None
                value = _run_callable(task.payload, task.label)
    except SystemExit as left:
        exit_code = left.code if isinstance(left.code, int) else int(left.code is not None)
        how = Ending.RESULT if exit_code == 0 else Ending.EXIT
        value = dumps_value(None, "nothing")
        if not isinstance(left.code, int) and left.code is not None:
            print(left.code, file=sys.stderr)
    except BaseException as raised:  # process boundary: the driver gets it and raises it
        how, error = Ending.ERROR, pack_error(raised)
    output, posted = capture.end()
    published = board.publishing.pop(task.label, None) is not None
    if not task.keep_value:
        value = b""
    small = value if len(value) <= _SMALL_BYTES else None
    ended = Ended(how, exit_code, signal, error, small, output, posted, published)
    return ended, b"" if small is not None else value


def _run_callable(payload: bytes, label: str) -> bytes:
    try:
        fn, args, kwargs = loads(payload)
        return dumps_value(fn(*args, **kwargs), f"the result of {label}")
    finally:
        shutdown_default_client()  # jobs and actors that the task started end with it


def _run_command(command: Sequence[str]) -> int:
    mark = secrets.token_hex(8)
    environ = dict(os.environ)
    environ[MARK_VARIABLE] = f"{environ[MARK_VARIABLE]}:{mark}"
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait()
    finally:
        for number in marked_processes(mark):
            kill_quietly(os.kill, number)


@contextlib.contextmanager
def surrounded(surroundings: Surroundings, tree: bytes | None, environ: Mapping[str, str]) -> Generator[None]:
    """Put a task's surroundings in place for the body, and take them back."""
    path, folder, variables = list(sys.path), os.getcwd(), dict(os.environ)
    try:
        enter(surroundings, tree)
        os.environ.update(environ)
        yield
    finally:
        sys.path[:] = path
        os.chdir(folder)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def enter(surroundings: Surroundings, tree: bytes | None) -> None:
    """Put a task's surroundings in place for good (actors have a process of their own)."""
    set_default_client_factory(surroundings.make_client)
    for name, value in surroundings.environ.items():
        os.environ.setdefault(name, value)
    folder = surroundings.cwd
    if surroundings.requirements:
        packages = overlay(surroundings.requirements)
        sys.path.insert(0, packages)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{packages}{os.pathsep}{before}" if before else packages  # for commands
    if tree is not None:
        folder = unpack_tree(surroundings.tree_digest, tree)
        sys.path.insert(0, folder)
    sys.path.extend(entry for entry in surroundings.search_path if entry not in sys.path and os.path.exists(entry))
    if folder is not None and os.path.isdir(folder):
        os.chdir(folder)


class OutputCapture:
    """Copies what this process prints (file descriptors 1 and 2) to whoever owns it now, and on to where it went.

    Lines go to the board a few times a second, so a driver can look at a running task; the end of a task brings all.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._read, False)
        self._original = os.dup(1)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        self._lock = threading.Lock()
        self._key: str | None = None
        self._tail = LogTail("")
        self._due_s = 0.0
        self._posted = False
        self._dirty = False
        threading.Thread(target=self._pump, name="fray-output", daemon=True).start()

    def begin(self, key: str, label: str) -> None:
        """Give the output from here on to ``key`` of the board."""
        _flush()
        with self._lock:
            self._drain()
            self._key, self._tail, self._posted, self._dirty = key, LogTail(label), False, True
            self._due_s = time.monotonic() + _FIRST_POST_S  # most tasks have ended by then, and cost the board nothing
        os.write(self._wake_write, b"x")

    def end(self) -> tuple[bytes, bool]:
        """Return the output since ``begin``, and whether anything was written to the board."""
        _flush()
        with self._lock:
            self._drain()
            self._key = None
            return _text(self._tail), self._posted

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._read, _PIPE_BYTES)
            except BlockingIOError:
                return
            self._tail.feed(data)
            self._dirty = True
            with contextlib.suppress(OSError):  # the log file of Ray may be gone
                os.write(self._original, data)

    def _pump(self) -> None:
        while True:
            with self._lock:
                waiting = self._key is not None and self._dirty
                left_s = max(0.0, self._due_s - time.monotonic())
            ready, _, _ = select.select([self._read, self._wake_read], [], [], left_s if waiting else None)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            with self._lock:
                self._drain()
                if self._key is None or not self._dirty or time.monotonic() < self._due_s:
                    continue
                self._dirty, self._posted, self._due_s = False, True, time.monotonic() + _POST_S
                board.put(self._key, _text(self._tail)[-_POST_BYTES:])


def _text(tail: LogTail) -> bytes:
    return "\n".join(tail.lines(1_000_000)).encode()


def _flush() -> None:
    with contextlib.suppress(Exception):  # a task may have closed or replaced its own streams
        sys.stdout.flush()
        sys.stderr.flush()


_capture: list[OutputCapture] = []
_guarded: list[int] = []


def output_capture() -> OutputCapture:
    """Return the capture of this process, made when first asked for."""
    if not _capture:
        _capture.append(OutputCapture())
    return _capture[0]


def guard_this_process() -> None:
    """Start this worker's guardian, which kills what tasks left running when the worker ends, however it ends.

    It is detached, because Ray kills a worker's direct children first of all.
    """
    if _guarded == [os.getpid()]:
        return
    mark = secrets.token_hex(8)
    outer = os.environ.get(MARK_VARIABLE)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-S", "-E", guardian_module.__file__, str(read_end), mark, "detach"]
    subprocess.run(command, pass_fds=(read_end,), start_new_session=True, stdin=subprocess.DEVNULL, check=True)
    os.close(read_end)
    os.environ[MARK_VARIABLE] = f"{outer}:{mark}" if outer else mark
    _guarded[:] = [os.getpid()]
    globals()["_guardian_pipe"] = write_end  # open as long as this process lives


def free_address() -> str:
    """Return ``host:port`` of this machine where nobody listens now, for rank 0 of a gang."""
    host = ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
