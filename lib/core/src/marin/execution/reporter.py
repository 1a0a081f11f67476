"""Telling whoever watches what a run is doing."""

import shutil
import sys
from typing import Protocol, TextIO

from rigging.timing import Clock, SystemClock

from marin.execution.outcomes import Outcome, RunSummary, StepOutcome


class RunReporter(Protocol):
    """Called by the runner; from several threads, never at the same time."""

    def step_started(self, step: str, why: str) -> None:
        """A body begins."""
        ...

    def step_waiting(self, step: str, holder: str) -> None:
        """Another driver works on the step; called when the holder changes and every minute."""
        ...

    def step_progress(self, step: str, text: str) -> None:
        """How far a body that runs as a job is."""
        ...

    def step_finished(self, outcome: StepOutcome, done: int, total: int) -> None:
        """A step is settled."""
        ...

    def notice(self, step: str, message: str) -> None:
        """Something that a person should know, such as a drift."""
        ...

    def run_finished(self, summary: RunSummary) -> None:
        """Everything is settled."""
        ...


class QuietReporter:
    """Says nothing."""

    def step_started(self, step: str, why: str) -> None:
        """Nothing."""

    def step_waiting(self, step: str, holder: str) -> None:
        """Nothing."""

    def step_progress(self, step: str, text: str) -> None:
        """Nothing."""

    def step_finished(self, outcome: StepOutcome, done: int, total: int) -> None:
        """Nothing."""

    def notice(self, step: str, message: str) -> None:
        """Nothing."""

    def run_finished(self, summary: RunSummary) -> None:
        """Nothing."""


_TELL_EVERY_S = 10.0
"""Seconds between two progress lines of one step where there is no terminal."""

_MARKS = {
    Outcome.EXECUTED: "done",
    Outcome.CACHED: "cached",
    Outcome.FAILED: "FAILED",
    Outcome.KNOWN_FAILURE: "known failure",
    Outcome.DEP_FAILED: "skipped",
    Outcome.NOT_RUN: "not run",
}


class ConsoleReporter:
    """One line when a step begins and one when it ends, and a table at the end, on stderr.

    In between, jobs tell how far they are: on a terminal in one live line, elsewhere in a line every ten seconds.

    Args:
        stream: Where to write; stderr by default.
        clock: Source of time.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Clock = SystemClock()) -> None:
        self._stream = stream
        self._clock = clock
        self._live_width = 0
        self._told_at: dict[str, float] = {}

    def _line(self, text: str) -> None:
        stream = self._stream or sys.stderr
        if self._live_width:
            stream.write("\r" + " " * self._live_width + "\r")
            self._live_width = 0
        print(text, file=stream, flush=True)

    def step_progress(self, step: str, text: str) -> None:
        """``...   model@auto-...: train 120/300 steps, ...``."""
        stream = self._stream or sys.stderr
        line = f"  ...      {step.partition('@')[0]}  {text}"
        if stream.isatty():
            line = line[: shutil.get_terminal_size().columns - 1]
            self._live_width = max(self._live_width, len(line))
            stream.write("\r" + line.ljust(self._live_width))
            stream.flush()
        elif self._clock.monotonic() - self._told_at.get(step, -_TELL_EVERY_S) >= _TELL_EVERY_S:
            self._told_at[step] = self._clock.monotonic()
            self._line(line)

    def step_started(self, step: str, why: str) -> None:
        """``run   tokens@auto-...: why``."""
        self._line(f"  run      {step}  ({why})")

    def step_waiting(self, step: str, holder: str) -> None:
        """``wait  tokens@auto-...: for whom``."""
        self._line(f"  wait     {step}  (another driver works on it: {holder})")

    def step_finished(self, outcome: StepOutcome, done: int, total: int) -> None:
        """``done  [3/12] tokens@auto-... 1.2 s``."""
        mark = _MARKS[outcome.outcome]
        line = f"  {mark:<8} {outcome.step}  [{done}/{total}]"
        if outcome.outcome is Outcome.EXECUTED:
            line += f"  {outcome.seconds:.1f} s"
        elif not outcome.ok:
            line += f"  {outcome.category + ': ' if outcome.category else ''}{outcome.message or outcome.reason}"
        self._line(line)

    def notice(self, step: str, message: str) -> None:
        """``note  tokens@...: text``."""
        self._line(f"  note     {step}  {message}")

    def run_finished(self, summary: RunSummary) -> None:
        """The table at the end."""
        self._line(summary_text(summary))


def summary_text(summary: RunSummary) -> str:
    """The table that ends a run: counts, wall time, peak memory, then every step that ran or has no output."""
    known = summary.count(Outcome.KNOWN_FAILURE)
    failed = summary.count(Outcome.FAILED) + summary.count(Outcome.DEP_FAILED) + summary.count(Outcome.NOT_RUN)
    lines = [
        "",
        f"{summary.count(Outcome.EXECUTED)} executed, {summary.count(Outcome.CACHED)} cached, "
        f"{known} known failures, {failed} failed"
        f"  |  {summary.seconds:.1f} s wall, {summary.peak_memory_bytes / 2**20:.0f} MiB peak memory"
        f"  |  {summary.prefix}",
    ]
    shown = [step for step in summary.steps if step.outcome is not Outcome.CACHED]
    if shown:
        width = max(len(step.step) for step in shown)
        lines.append(f"  {'step':<{width}}  {'outcome':<13}  {'seconds':>8}  {'memory':>9}  reason")
        lines.extend(_row(step, width) for step in shown)
    return "\n".join(lines)


def _row(step: StepOutcome, width: int) -> str:
    peak = step.resources.get("ram_peak")
    memory = f"{peak / 2**20:.0f} MiB" if peak else "-"
    why = step.reason if step.ok else f"{step.category or step.outcome.value}: {step.message or step.reason}"
    mark = _MARKS[step.outcome] + (" (allowed)" if step.allowed and not step.ok else "")
    return (
        f"  {step.step:<{width}}  {mark:<13}  {step.seconds:>8.1f}  {memory:>9}  {why.splitlines()[0] if why else ''}"
    )
