"""A pool of workers on fray: one actor process each, driven by one thread each.

A thread hands its worker one attempt at a time and waits for the answer, so nobody polls. A dead process shows as
`ActorUnavailableError`: the thread reports the loss and then that the worker joined, since fray starts a fresh process
under the same name. Only a process that ended by itself without an error is not started again by fray; then the pool
makes a new actor. A process that hangs is killed on the coordinator's word and is then as dead as any other.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import fray
from rigging.resources import ResourceConfig

from zephyr._driver import event_of
from zephyr._pulse import read_beat, read_memory_note
from zephyr._quarantine import read_crumb
from zephyr._task import TaskSettings, TaskSpec, crumb_path, describe_error
from zephyr.coordinator import Event, TaskFailed, WorkerBeat, WorkerJoined, WorkerLost
from zephyr.errors import MemoryBudgetError, WorkersLostError
from zephyr.worker import ZephyrWorker

logger = logging.getLogger(__name__)

_RESTARTS = 1_000_000


class _Word(Enum):
    """What a worker's thread can be told besides a task."""

    END = "end"
    RELEASE = "release"
    KILLED = "killed"


@dataclass
class _Member:
    """One worker over all its processes; `group` and `at` say where its actor is."""

    name: str
    group: Any
    at: int
    inbox: "queue.SimpleQueue[tuple[TaskSpec, TaskSettings] | _Word]"
    idle: threading.Event
    current: TaskSpec | None = None
    beat: tuple[str, int] = ("", 0)
    kills: int = 0
    kills_told: int = 0
    released: bool = False

    @property
    def handle(self) -> Any:
        return self.group.handles[self.at]


class WorkerPool:
    """Workers that outlive an execution.

    Args:
        client: A fray client whose actors are processes.
        num_workers: Number of workers, at least one.
        name: Prefix of the workers' names.
        resources: What each worker is given.
    """

    def __init__(self, client: "fray.Client", num_workers: int, *, name: str, resources: ResourceConfig) -> None:
        self.client = client
        self.name = name
        self.resources = resources
        group = self._create(name, num_workers)
        self.groups = [group]
        self.events: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
        self.members: dict[str, _Member] = {}
        self.execution = ""
        self.closing = False
        self.settings: TaskSettings | None = None
        self.threads = []
        for index in range(num_workers):
            member = _Member(f"{name}-{index}", group, index, queue.SimpleQueue(), threading.Event())
            member.idle.set()
            self.members[member.name] = member
            thread = threading.Thread(target=self._serve, args=(member,), name=member.name, daemon=True)
            self.threads.append(thread)
            thread.start()

    def _create(self, name: str, count: int) -> "fray.ActorGroup":
        config = fray.ActorConfig(max_restarts=_RESTARTS)
        return self.client.create_actor_group(
            ZephyrWorker, name=name, count=count, resources=self.resources, actor_config=config
        )

    @property
    def current(self) -> list[TaskSpec | None]:
        """What each worker is running."""
        return [member.current for member in self.members.values()]

    def begin(self, execution: str, settings: TaskSettings) -> None:
        """Prepare for a new execution."""
        self.execution = execution
        self.settings = settings

    def join(self) -> Sequence[str]:
        """All workers; a process that is still starting takes its first task when it is up."""
        return [name for name, member in self.members.items() if not member.released]

    def submit(self, worker: str, spec: TaskSpec) -> None:
        """Hand an attempt to a worker."""
        assert self.settings is not None, "begin() comes first"
        member = self.members[worker]
        member.idle.clear()
        member.current = spec
        member.inbox.put((spec, self.settings))

    def next_event(self, timeout_s: float) -> Event | None:
        """Wait for an event of the current execution."""
        try:
            execution, event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            if not any(thread.is_alive() for thread in self.threads):
                raise WorkersLostError("all", -1, len(self.threads), "no worker could be replaced") from None
            return None
        return event if execution == self.execution else None

    def beats(self) -> list[WorkerBeat]:
        """Signs of life since the last call."""
        assert self.settings is not None, "begin() comes first"
        out = []
        for member in self.members.values():
            spec = member.current
            if spec is None or (found := read_beat(self.settings.folder, spec.label)) is None:
                continue
            number, _, live = found
            if member.beat != (spec.label, number):
                member.beat = (spec.label, number)
                out.append(WorkerBeat(member.name, spec.label, live))
        return out

    def kill(self, worker: str) -> None:
        """End a worker's process, hung or not; its loss, and that it joined again, are events."""
        member = self.members[worker]
        member.kills += 1
        # The thread that waits for the answer sees the death; the word is for when the answer came just before.
        threading.Thread(target=self._kill, args=(member,), name=f"kill {worker}", daemon=True).start()

    def _kill(self, member: _Member) -> None:
        with contextlib.suppress(fray.ActorUnavailableError):  # it died on its own, which its thread sees too
            member.group.restart(member.at)
        member.inbox.put(_Word.KILLED)

    def release(self, worker: str) -> None:
        """Let an idle worker's process end."""
        member = self.members[worker]
        member.released = True
        member.inbox.put(_Word.RELEASE)

    def abandon(self, specs: Sequence[TaskSpec]) -> None:
        """Replace the workers that still run one of these, and wait until no worker runs anything."""
        unwanted = {spec.label for spec in specs}
        for member in self.members.values():
            if member.current is not None and member.current.label in unwanted:
                with contextlib.suppress(fray.ActorUnavailableError):  # it died on its own, which its thread sees too
                    member.group.restart(member.at)
        for member in self.members.values():
            member.idle.wait()
        self.execution = ""

    def close(self) -> None:
        """End all workers."""
        self.closing = True
        for member in self.members.values():
            member.inbox.put(_Word.END)
        for group in self.groups:
            group.shutdown()
        for thread in self.threads:
            thread.join()

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [member.handle.pid() for member in self.members.values()]

    def _serve(self, member: _Member) -> None:
        while (message := member.inbox.get()) is not _Word.END:
            if message is _Word.RELEASE:
                with contextlib.suppress(fray.FrayError):  # it is gone already, which is what was wanted
                    member.handle.leave()
                return
            event: Event
            if isinstance(message, _Word):
                if member.kills_told == member.kills:
                    continue
                execution, event = self.execution, WorkerLost(member.name, "killed")
            else:
                spec, settings = message
                execution, event = spec.execution, self._attempt(member, spec, settings)
                member.current = None
                member.idle.set()
            if isinstance(event, WorkerLost):
                member.kills_told = member.kills
            self.events.put((execution, event))
            if isinstance(event, WorkerLost):
                if not self._came_back(member):
                    return
                self.events.put((execution, WorkerJoined(member.name)))

    def _attempt(self, member: _Member, spec: TaskSpec, settings: TaskSettings) -> Event:
        try:
            return event_of(member.name, spec, member.handle.run(spec, settings))
        except fray.ActorUnavailableError as error:
            return _loss(member.name, spec, settings, error)
        except Exception as error:  # The boundary to the backend: without an event all would wait.
            return TaskFailed(member.name, spec, describe_error(error))

    def _came_back(self, member: _Member) -> bool:
        """Wait for the process that fray starts in place of a dead one, or start a new actor where it does not."""
        try:
            self._ensure(member)
        except fray.FrayError as failure:
            logger.error("worker %s cannot be replaced: %s", member.name, failure)
            return False
        return True

    def _ensure(self, member: _Member) -> None:
        try:
            member.handle.pid()
        except fray.ActorUnavailableError:
            if self.closing:
                return
            member.group = self._create(f"{member.name}-again-{len(self.groups)}", 1)
            member.at = 0
            self.groups.append(member.group)


def _loss(worker: str, spec: TaskSpec, settings: TaskSettings, cause: fray.ActorUnavailableError) -> WorkerLost:
    memory = read_memory_note(settings.folder, spec.label)
    if memory is not None:
        logger.warning("worker %s outgrew its memory in task %s: %d bytes", worker, spec.label, memory[0])
        # A fresh process may have room where one that grew over many tasks had none: unlike bad data, try again.
        error = replace(describe_error(MemoryBudgetError(*memory)), retryable=True)
        return WorkerLost(worker, error.text, error=error)
    logger.warning("worker %s died while it ran task %s: %s", worker, spec.label, cause)
    poison = read_crumb(crumb_path(settings, spec)) if spec.careful and settings.quarantine else None
    return WorkerLost(worker, str(cause), poison)
