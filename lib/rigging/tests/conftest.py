"""Helpers for tests that need real processes."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

# A busy machine is not a bug: examples may take their time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


class Child:
    """A Python child process that prints lines and obeys signals."""

    def __init__(self, code: str, *args: str):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def python_child() -> Iterator[Callable[..., Child]]:
    """Start Python children that are gone when the test ends."""
    children: list[Child] = []

    def start(code: str, *args: str) -> Child:
        children.append(Child(code, *args))
        return children[-1]

    yield start
    for child in children:
        child.close()
