"""A pool of workers on fray: one actor process each, driven by one thread each.

A thread hands its worker one attempt at a time and waits for the answer, so nobody polls. A dead process shows as
`ActorUnavailableError`: the thread reports the loss, brings a replacement, and reports that it joined.
"""

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any

import fray
from rigging.resources import ResourceConfig

from zephyr._driver import event_of
from zephyr._task import TaskSettings, TaskSpec
from zephyr.coordinator import Event, WorkerJoined, WorkerLost
from zephyr.worker import ZephyrWorker

logger = logging.getLogger(__name__)


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
        self.group = client.create_actor_group(ZephyrWorker, name=name, count=num_workers, resources=resources)
        self.events: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
        self.inboxes: list[queue.SimpleQueue[tuple[TaskSpec, TaskSettings] | None]] = []
        self.idle = [threading.Event() for _ in self.names]
        self.execution = ""
        self.settings: TaskSettings | None = None
        self.threads = []
        for index in range(num_workers):
            self.idle[index].set()
            self.inboxes.append(queue.SimpleQueue())
            thread = threading.Thread(target=self._serve, args=(index,), name=self.names[index], daemon=True)
            self.threads.append(thread)
            thread.start()

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
        self.inboxes[index].put((spec, self.settings))

    def next_event(self, timeout_s: float) -> Event | None:
        """Wait for an event of the current execution."""
        try:
            execution, event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return event if execution == self.execution else None

    def abandon(self, specs: Sequence[TaskSpec]) -> None:
        """Replace the workers that still run something, and wait until none does."""
        del specs
        for index, idle in enumerate(self.idle):
            if not idle.is_set():
                self.group.restart(index)
        for idle in self.idle:
            idle.wait()
        self.execution = ""

    def close(self) -> None:
        """End all workers."""
        for inbox in self.inboxes:
            inbox.put(None)
        self.group.shutdown()
        for thread in self.threads:
            thread.join()

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [self.group.handles[index].pid() for index in range(len(self.names))]

    def _serve(self, index: int) -> None:
        while (message := self.inboxes[index].get()) is not None:
            spec, settings = message
            for event in self._attempt(index, spec, settings):
                self.events.put((spec.execution, event))
            self.idle[index].set()

    def _attempt(self, index: int, spec: TaskSpec, settings: TaskSettings) -> list[Event]:
        worker = self.names[index]
        handle: Any = self.group.handles[index]
        try:
            return [event_of(worker, spec, handle.run(spec, settings))]
        except fray.ActorUnavailableError as error:
            logger.warning("worker %s died while it ran task %s: %s", worker, spec.label, error)
            self.group.restart(index)
            return [WorkerLost(worker, str(error)), WorkerJoined(worker)]
