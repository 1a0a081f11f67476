"""A parent process that keeps a run alive: start, watch the heartbeat, end what is stuck, start again.

    python -m levanter.main.supervise --heartbeat_timeout 10m -- python -m levanter.main.train_lm --config_path c.yaml

The child resumes from its newest checkpoint by itself, so a restart needs no state here. For a restart that loses
seconds instead of minutes, put temporary checkpoints into memory: ``checkpointer: {temporary_base_path: /dev/shm/run,
save_interval: 30s}``; they outlive the process, not the machine.

Invariants: a signal to stop reaches the child and ends the loop; the exit code is that of the last child; every
attempt is one line in the record.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from levanter._env import environment_with_heartbeat
from levanter.errors import ConfigError
from levanter.recovery.exits import Attempt, classify_exit, verdict
from levanter.recovery.heartbeat import read_heartbeat

logger = logging.getLogger(__name__)
POLL_S = 0.2


@dataclass(frozen=True)
class SupervisorConfig:
    """How patient to be.

    Attributes:
        max_restarts: Restarts in all.
        max_without_progress: Attempts in a row that may end without one more update.
        heartbeat_timeout: Longest time between two beats once there was one; None does not watch.
        startup_timeout: Longest time to the first beat; None does not watch.
        grace: Time between asking a stuck child to end (its stacks are dumped) and ending it.
        backoff: Wait before the first restart; doubles with every attempt without progress.
        health_command: Must succeed before a restart, for example ``[nvidia-smi, -L]``.
        record: File that gets one JSON line an attempt; None keeps none.
    """

    max_restarts: int = 20
    max_without_progress: int = 3
    heartbeat_timeout: timedelta | None = timedelta(minutes=30)
    startup_timeout: timedelta | None = timedelta(hours=1)
    grace: timedelta = timedelta(seconds=10)
    backoff: timedelta = timedelta(seconds=5)
    health_command: list[str] = field(default_factory=list)
    record: str | None = "supervisor.jsonl"

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.max_without_progress < 1:
            raise ConfigError(
                f"max_restarts={self.max_restarts}, max_without_progress={self.max_without_progress}; "
                "expected >= 0 and >= 1.",
                key="max_restarts",
            )


class Supervisor:
    """Runs one command until it is done or cannot be helped.

    Args:
        config: How patient to be.
        command: The child's words.
        heartbeat_path: File through which the child says how far it is.
    """

    def __init__(self, config: SupervisorConfig, command: Sequence[str], heartbeat_path: str) -> None:
        self._config = config
        self._command = list(command)
        self._beat_path = heartbeat_path
        self._stop = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self.attempts: list[Attempt] = []

    def run(self) -> int:
        """Keep the child alive; its last exit code (128 + n for signal n)."""
        idle = 0
        while True:
            attempt = self._attempt()
            self.attempts.append(attempt)
            reason = "stopped" if self._stop.is_set() else self._verdict()
            self._write(attempt, reason)
            if reason is not None:
                logger.info("supervisor: the run ends: %s", reason)
                return attempt.code if attempt.code >= 0 else 128 - attempt.code
            idle = 0 if attempt.last_step > attempt.first_step else idle + 1
            wait = self._config.backoff.total_seconds() * 2**idle
            logger.warning("supervisor: %s after %d updates; starting again", attempt.kind, attempt.last_step)
            self._stop.wait(wait)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Pass a signal on to the child and do not start it again."""
        self._stop.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    @contextlib.contextmanager
    def forwarding(self) -> Any:
        """Forward SIGTERM and SIGINT to the child for the length of a block."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, lambda n, _: self.stop(n)) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _attempt(self) -> Attempt:
        first = self._step()
        began = time.time()
        self._child = subprocess.Popen(self._command, env=environment_with_heartbeat(self._beat_path))
        stalled = False
        while (code := self._wait()) is None:
            if not stalled and self._is_stuck(began):
                stalled = True
                self._end_stuck()
        return Attempt(code, classify_exit(code, stalled=stalled), first, self._step())

    def _wait(self) -> int | None:
        assert self._child is not None
        try:
            return self._child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return None

    def _is_stuck(self, began: float) -> bool:
        beat = read_heartbeat(self._beat_path)
        if beat is None or beat[1] < began:
            limit = self._config.startup_timeout
            return limit is not None and time.time() - began > limit.total_seconds()
        limit = self._config.heartbeat_timeout
        return limit is not None and time.time() - beat[1] > limit.total_seconds()

    def _end_stuck(self) -> None:
        """SIGABRT dumps the stacks of a child that enabled the fault handler; SIGKILL ends one that is past that."""
        assert self._child is not None
        logger.error("supervisor: no heartbeat; ending process %d", self._child.pid)
        self._child.send_signal(signal.SIGABRT)
        try:
            self._child.wait(self._config.grace.total_seconds())
        except subprocess.TimeoutExpired:
            self._child.kill()

    def _step(self) -> int:
        beat = read_heartbeat(self._beat_path)
        return 0 if beat is None else beat[0]

    def _verdict(self) -> str | None:
        limits = {
            "max_restarts": self._config.max_restarts,
            "max_without_progress": self._config.max_without_progress,
        }
        reason = verdict(self.attempts, **limits)
        if reason is None and self._config.health_command:
            healthy = (
                subprocess.run(self._config.health_command, check=False, stdout=subprocess.DEVNULL).returncode == 0
            )
            return None if healthy else "the machine is not healthy"
        return reason

    def _write(self, attempt: Attempt, reason: str | None) -> None:
        if self._config.record is None:
            return
        row = {
            "attempt": len(self.attempts),
            "code": attempt.code,
            "kind": attempt.kind,
            "first_step": attempt.first_step,
            "last_step": attempt.last_step,
            "ended": reason,
            "time": time.time(),
        }
        os.makedirs(os.path.dirname(os.path.abspath(self._config.record)), exist_ok=True)
        with open(self._config.record, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, sort_keys=True) + "\n")
