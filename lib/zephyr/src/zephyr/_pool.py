"""A pool of workers on fray: one actor process each, driven by one thread each.

A thread hands its worker one attempt at a time and waits for the answer, so nobody polls. A dead process shows as
`ActorUnavailableError`: the thread reports the loss and then that the worker joined, since fray starts a fresh process
under the same name. Only a process that ended by itself without an error is not started again by fray; then the pool
makes a new actor.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any

import fray
from rigging.resources import ResourceConfig

from zephyr._driver import event_of
from zephyr._task import TaskSettings, TaskSpec, describe_error
from zephyr.coordinator import Event, TaskFailed, WorkerJoined, WorkerLost
from zephyr.errors import WorkersLostError
from zephyr.worker import ZephyrWorker

logger = logging.getLogger(__name__)

_RESTARTS = 1_000_000


class WorkerPool:
    """Workers that outlive an execution.

    Args:
        client: A fray client whose actors are processes.
        num_workers: Number of workers, at least one.
        name: Prefix of the workers' names.
        resources: What each worker is given.
    """

    def __init__(self, client: "fray.Client", num_workers: int, *, name: str, resources: ResourceConfig) -> None:
        self.names = [f"{name}-{index}" for index in range(num_workers)]
        self.client = client
        self.name = name
        self.resources = resources
        group = self._create(name, num_workers)
        self.groups = [group]
        self.places: list[tuple[Any, int]] = [(group, index) for index in range(num_workers)]
        self.events: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
        self.inboxes: list[queue.SimpleQueue[tuple[TaskSpec, TaskSettings] | None]] = []
        self.idle = [threading.Event() for _ in self.names]
        self.current: list[TaskSpec | None] = [None for _ in self.names]
        self.execution = ""
        self.closing = False
        self.settings: TaskSettings | None = None
        self.threads = []
        for index in range(num_workers):
            self.idle[index].set()
            self.inboxes.append(queue.SimpleQueue())
            thread = threading.Thread(target=self._serve, args=(index,), name=self.names[index], daemon=True)
            self.threads.append(thread)
            thread.start()

    def _create(self, name: str, count: int) -> "fray.ActorGroup":
        config = fray.ActorConfig(max_restarts=_RESTARTS)
        return self.client.create_actor_group(
            ZephyrWorker, name=name, count=count, resources=self.resources, actor_config=config
        )

    def _handle(self, index: int) -> Any:
        group, at = self.places[index]
        return group.handles[at]

    def begin(self, execution: str, settings: TaskSettings) -> None:
        """Prepare for a new execution."""
        self.execution = execution
        self.settings = settings

    def join(self) -> Sequence[str]:
        """All workers; a process that is still starting takes its first task when it is up."""
        return self.names

    def submit(self, worker: str, spec: TaskSpec) -> None:
        """Hand an attempt to a worker."""
        assert self.settings is not None, "begin() comes first"
        index = self.names.index(worker)
        self.idle[index].clear()
        self.current[index] = spec
        self.inboxes[index].put((spec, self.settings))

    def next_event(self, timeout_s: float) -> Event | None:
        """Wait for an event of the current execution."""
        try:
            execution, event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            if not any(thread.is_alive() for thread in self.threads):
                raise WorkersLostError("all", -1, len(self.threads), "no worker could be replaced") from None
            return None
        return event if execution == self.execution else None

    def abandon(self, specs: Sequence[TaskSpec]) -> None:
        """Replace the workers that still run one of these, and wait until no worker runs anything."""
        unwanted = {spec.label for spec in specs}
        for index, spec in enumerate(self.current):
            if spec is not None and spec.label in unwanted:
                group, at = self.places[index]
                with contextlib.suppress(fray.ActorUnavailableError):  # it died on its own, which its thread sees too
                    group.restart(at)
        for idle in self.idle:
            idle.wait()
        self.execution = ""

    def close(self) -> None:
        """End all workers."""
        self.closing = True
        for inbox in self.inboxes:
            inbox.put(None)
        for group in self.groups:
            group.shutdown()
        for thread in self.threads:
            thread.join()

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [self._handle(index).pid() for index in range(len(self.names))]

    def _serve(self, index: int) -> None:
        while (message := self.inboxes[index].get()) is not None:
            spec, settings = message
            events = self._attempt(index, spec, settings)
            self.current[index] = None
            for event in events:
                self.events.put((spec.execution, event))
            self.idle[index].set()
            if isinstance(events[-1], WorkerLost):
                return

    def _attempt(self, index: int, spec: TaskSpec, settings: TaskSettings) -> list[Event]:
        worker = self.names[index]
        try:
            return [event_of(worker, spec, self._handle(index).run(spec, settings))]
        except fray.ActorUnavailableError as error:
            logger.warning("worker %s died while it ran task %s: %s", worker, spec.label, error)
            lost = WorkerLost(worker, str(error))
        except Exception as error:  # The boundary to the backend: without an event all would wait.
            return [TaskFailed(worker, spec, describe_error(error))]
        try:
            self._ensure(index)
        except fray.FrayError as error:
            logger.error("worker %s cannot be replaced: %s", worker, error)
            return [lost]
        return [lost, WorkerJoined(worker)]

    def _ensure(self, index: int) -> None:
        """Wait for the process that fray starts in place of a dead one, or start a new actor where it does not."""
        try:
            self._handle(index).pid()
        except fray.ActorUnavailableError:
            if self.closing:
                return
            group = self._create(f"{self.names[index]}-again-{len(self.groups)}", 1)
            self.groups.append(group)
            self.places[index] = (group, 0)
