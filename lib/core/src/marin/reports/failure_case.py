"""A failure case: one Markdown file that says what a failed step did, so that people can work on it.

What the record holds is filled in (recipe, error, log tail, the files that were kept, how to run it again); what only a
person knows is left as headings. The same headings, empty, are the issue template of the repository.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from marin.errors import RecordNotFoundError
from marin.execution.layout import StepLayout, list_folder
from marin.execution.records import AttemptRecord
from marin.ledger.ledger import Ledger, StepEntry

HEADINGS = (
    ("What failed", "The step, when, where, and under which recipe."),
    ("Error", "The message and the traceback, redacted."),
    ("Last log lines", "What the attempt wrote before it ended, redacted."),
    ("What was kept", "Logs, curves and checkpoints of the failed attempt; where they lie."),
    ("Earlier attempts", "How often it failed like this, and whether it ever worked."),
    ("Run it again", "The command."),
    ("Suspected cause", "In one sentence; say how sure you are."),
    ("What was tried", "Also what did not help."),
    ("Decision", "Fixed (by which commit), refuted, known limit, or abandoned; and who decided."),
)
"""Headings of a case in order, each with what belongs under it."""

TEMPLATE_HEADER = """---
name: Failed step
about: A step of an experiment failed and the reason is not understood
title: "[failure] NAME@VERSION: CATEGORY"
labels: failure
---

<!-- `marin case NAME@VERSION` fills this in from the ledger. -->
"""

_SHOWN_FILES = 40


@dataclass(frozen=True)
class FailureCase:
    """A case, ready to be written.

    Attributes:
        title: One line.
        file_name: Name that is the same for the same attempt.
        text: Markdown.
    """

    title: str
    file_name: str
    text: str


def issue_template() -> str:
    """The empty case, as the issue template of a repository.

    Example:
        >>> issue_template().count("## ")
        9
    """
    body = "\n".join(f"## {heading}\n\n<!-- {hint} -->\n" for heading, hint in HEADINGS)
    return f"{TEMPLATE_HEADER}\n{body}"


def failure_case(ledger: Ledger, name: str, version: str = "") -> FailureCase:
    """The case of the latest failed attempt at a step.

    Args:
        ledger: The store.
        name: Step name.
        version: Step version; the latest without.
    Returns:
        The case.
    Raises:
        RecordNotFoundError: There is no such step, or no attempt at it ever failed.
    """
    entry = ledger.find(name, version)
    attempts = ledger.attempts(entry.name, entry.version)
    failed = [attempt for attempt in attempts if attempt.closed and attempt.status != "success"]
    if not failed:
        raise RecordNotFoundError(
            entry.path,
            f"no attempt at {entry.label} failed; its status is {entry.state}",
            hint="List failures with 'marin failures'.",
        )
    latest = failed[-1]
    title = f"[failure] {entry.label}: {latest.category or latest.status}"
    sections = {
        "What failed": _what(entry, latest),
        "Error": _error(latest),
        "Last log lines": _block(latest.log_tail) if latest.log_tail else "None were kept.",
        "What was kept": _kept(entry.layout, latest),
        "Earlier attempts": _story(attempts),
        "Run it again": _again(entry),
    }
    body = "\n".join(f"## {heading}\n\n{sections.get(heading, f'<!-- {hint} -->')}\n" for heading, hint in HEADINGS)
    stem = entry.label.replace("/", "-").replace("@", "-")
    return FailureCase(title, f"{stem}-{latest.attempt}.md", f"# {title}\n\n{body}")


def _what(entry: StepEntry, attempt: AttemptRecord) -> str:
    provenance = attempt.provenance
    commit = str(provenance.get("base_commit") or "unknown")
    rows = [
        ("step", entry.label),
        ("attempt", f"{attempt.attempt} (epoch {attempt.epoch})"),
        ("category", attempt.category or attempt.status),
        ("from", f"{attempt.started_at} to {attempt.ended_at or 'unknown'}"),
        ("machine", f"{attempt.host}, region {attempt.region or 'none'}"),
        ("code", commit + (" with uncommitted changes" if provenance.get("dirty") else "")),
        ("recipe", attempt.fingerprint),
        ("inputs", ", ".join(f"{item['ref']} ({(item['digest'] or 'no digest')[:16]})" for item in attempt.inputs)),
        ("environment", json.dumps(attempt.environment, sort_keys=True, ensure_ascii=False)),
    ]
    return "\n".join(f"- {key}: {_code(value)}" for key, value in rows if value)


def _error(attempt: AttemptRecord) -> str:
    error = attempt.error or {}
    text = error.get("traceback") or f"{error.get('type', '')}: {error.get('message', '')}"
    return f"{_code(str(error.get('type', 'unknown')))}, signature {_code(str(error.get('signature', 'none')))}\n\n" + (
        _block(str(text))
    )


def _kept(layout: StepLayout, attempt: AttemptRecord) -> str:
    lines = []
    if attempt.evidence:
        folder = os.path.join(layout.control, attempt.evidence)
        lines.append(f"Evidence, in {_code(folder)}:")
        lines += [f"- {_code(name)}" for name in _files_below(folder)]
    scratch = layout.scratch(attempt.fingerprint)
    checkpoints = _files_below(scratch)
    if checkpoints:
        lines.append(f"Scratch folder with what the next attempt goes on from (checkpoints), in {_code(scratch)}:")
        lines += [f"- {_code(name)}" for name in checkpoints]
    if attempt.partial_outputs:
        lines.append("Unfinished outputs, deleted after they were listed:")
        lines += [
            f"- {_code(item['path'])}, {item['bytes']:,} bytes" for item in attempt.partial_outputs[:_SHOWN_FILES]
        ]
    return "\n".join(lines) or "Nothing."


def _files_below(folder: str) -> list[str]:
    """Relative paths of the files below a folder, at most a page of them."""
    found: list[str] = []
    pending = [""]
    while pending and len(found) <= _SHOWN_FILES:
        here = pending.pop()
        folders, files = list_folder(os.path.join(folder, here) if here else folder)
        found += [os.path.join(here, name) for name in files]
        pending += [os.path.join(here, name) for name in reversed(folders)]
    more = ["..."] if len(found) > _SHOWN_FILES or pending else []
    return found[:_SHOWN_FILES] + more


def _story(attempts: list[AttemptRecord]) -> str:
    return "\n".join(
        f"- {_code(attempt.attempt)}: {attempt.status}{f', {attempt.category}' if attempt.category else ''}"
        f"{f', {attempt.seconds:.1f} s' if attempt.seconds is not None else ''}"
        for attempt in attempts
    )


def _again(entry: StepEntry) -> str:
    return _block(f"marin why {entry.label}\nmarin run SCRIPT --force {entry.name}")


def _code(text: str) -> str:
    """Inline code that nothing inside can end."""
    flat = " ".join(text.split())
    fence = "`" * (max((len(run) for run in _backtick_runs(flat)), default=0) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def _block(text: str) -> str:
    """A code block that nothing inside can end."""
    fence = "`" * max(3, max((len(run) for run in _backtick_runs(text)), default=0) + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _backtick_runs(text: str) -> list[str]:
    runs, run = [], ""
    for letter in text + " ":
        if letter == "`":
            run += letter
        elif run:
            runs.append(run)
            run = ""
    return runs
