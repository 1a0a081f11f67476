"""The actor that runs attempts in a process of its own.

It holds nothing that matters: the plan is read from the execution's scratch folder when the first task of it arrives,
and everything else comes with the task. A worker that is replaced is as good as the one before.
"""

import os
import pickle

import fray

from zephyr._allocator import return_memory_soon
from zephyr._leftovers import is_mine
from zephyr._pulse import Pulse
from zephyr._task import TaskError, TaskReport, TaskSettings, TaskSpec, describe_error, run_task
from zephyr.counters import CounterValues
from zephyr.physical import Plan

PLAN_FILE = "plan.pkl"


class ZephyrWorker:
    """Runs one attempt at a time."""

    def __init__(self) -> None:
        self._execution = ""
        self._plan: Plan | None = None
        self._fresh = True
        return_memory_soon()

    def pid(self) -> int:
        """Process id, for messages and tests."""
        return os.getpid()

    def leave(self) -> None:
        """End this process once the call is answered; it is not started again."""
        fray.current_actor().shutdown_event.set()

    def run(self, spec: TaskSpec, settings: TaskSettings) -> TaskReport | TaskError:
        """Run an attempt; what goes wrong comes back as data."""
        counted: CounterValues = {}
        # In a client that uses threads, the process to watch would be the driver's.
        limit = None if is_mine(spec.execution) else settings.limit_bytes
        first, self._fresh = self._fresh, False
        with Pulse(settings.folder, spec.label, counted, at_once=first, limit_bytes=limit):
            try:
                os.chdir(settings.working_folder)
                plan = self._load(spec.execution, settings)
            except Exception as error:  # Reviving user functions runs their modules, which may raise anything.
                return describe_error(error)
            return run_task(plan, spec, settings, counted)

    def _load(self, execution: str, settings: TaskSettings) -> Plan:
        if self._plan is None or self._execution != execution:
            with open(f"{settings.folder}/{PLAN_FILE}", "rb") as stream:
                self._plan = pickle.load(stream)
            self._execution = execution
        return self._plan
