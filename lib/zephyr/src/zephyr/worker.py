"""The actor that runs attempts in a process of its own.

It holds nothing that matters: the plan is read from the execution's scratch folder when the first task of it arrives,
and everything else comes with the task. A worker that is replaced is as good as the one before.
"""

import os
import pickle

from zephyr._task import TaskError, TaskReport, TaskSettings, TaskSpec, describe_error, run_task
from zephyr.physical import Plan

PLAN_FILE = "plan.pkl"


class ZephyrWorker:
    """Runs one attempt at a time."""

    def __init__(self) -> None:
        self._execution = ""
        self._plan: Plan | None = None

    def pid(self) -> int:
        """Process id, for messages and tests."""
        return os.getpid()

    def run(self, spec: TaskSpec, settings: TaskSettings) -> TaskReport | TaskError:
        """Run an attempt; what goes wrong comes back as data."""
        try:
            os.chdir(settings.working_folder)
            plan = self._load(spec.execution, settings)
        except Exception as error:  # Reviving user functions runs their modules, which may raise anything.
            return describe_error(error)
        return run_task(plan, spec, settings)

    def _load(self, execution: str, settings: TaskSettings) -> Plan:
        if self._plan is None or self._execution != execution:
            with open(f"{settings.folder}/{PLAN_FILE}", "rb") as stream:
                self._plan = pickle.load(stream)
            self._execution = execution
        return self._plan
