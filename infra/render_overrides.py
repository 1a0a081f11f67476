"""Render ``infra/overrides.toml`` into the root pyproject, or check that it is rendered, current and needed.

A list of thirty bounds without reasons grows for ever: nobody dares to drop a line. So each line is an entry of a table
with its reason, its advisory or issue, and a date at which somebody has to look again; the lines in pyproject are
generated, and an entry whose package has left the lock is an error. Only the standard library is used.
"""

import argparse
import datetime as dt
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.workspace import ROOT, Requirement, WorkspaceError, normalise

KINDS = ("override", "floor", "prerelease")
FIELDS = ("name", "kind", "bound", "reason", "reference", "added", "review_by")
BEGIN = "# ### BEGIN GENERATED OVERRIDES (infra/overrides.toml; python -m infra.render_overrides) ###"
END = "# ### END GENERATED OVERRIDES ###"
SHORTEST_REASON = 20


class OverridesError(ValueError):
    """The table is not what it should be."""


@dataclass(frozen=True)
class Entry:
    """One bound and why it is there."""

    name: str
    kind: str
    bound: str
    reason: str
    reference: str
    added: dt.date
    review_by: dt.date

    @property
    def requirement(self) -> str:
        """The requirement string that pyproject gets."""
        return f"{self.name}{self.bound}"


def _entry(row: Mapping[str, Any], position: int) -> Entry:
    missing = [name for name in FIELDS if not row.get(name)]
    unknown = sorted(set(row) - set(FIELDS))
    if missing or unknown:
        raise OverridesError(
            f"entry {position}: missing={missing}, unknown={unknown}; expected exactly {list(FIELDS)}."
        )
    entry = Entry(**row)
    if entry.kind not in KINDS:
        raise OverridesError(f"{entry.name}: kind={entry.kind!r}; expected one of {list(KINDS)}.")
    if not re.match(r"^(==|>=|<=|~=|<|>)", entry.bound):
        raise OverridesError(f"{entry.name}: bound={entry.bound!r}; expected a version specifier such as '>=1.2'.")
    if not isinstance(entry.added, dt.date) or not isinstance(entry.review_by, dt.date):
        raise OverridesError(f"{entry.name}: added and review_by are dates, written without quotes.")
    if entry.review_by <= entry.added:
        raise OverridesError(f"{entry.name}: review_by={entry.review_by} is not after added={entry.added}.")
    if len(entry.reason) < SHORTEST_REASON:
        raise OverridesError(f"{entry.name}: reason={entry.reason!r}; expected a sentence that says why.")
    return entry


def read_entries(text: str) -> list[Entry]:
    """Parse and check the table.

    Raises:
        OverridesError: A field is missing, unknown or malformed, or a name occurs twice.
    """
    entries = [_entry(row, i) for i, row in enumerate(tomllib.loads(text).get("entry", []), start=1)]
    names = [normalise(entry.name) for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OverridesError(f"named more than once: {twice}; expected one entry a package.")
    return sorted(entries, key=lambda entry: normalise(entry.name))


def render(entries: Sequence[Entry]) -> str:
    """The generated block, markers included."""
    lines = [BEGIN]
    for setting, kinds in (
        ("override-dependencies", ("override",)),
        ("constraint-dependencies", ("floor", "prerelease")),
    ):
        chosen = [entry for entry in entries if entry.kind in kinds]
        if not chosen:
            lines.append(f"{setting} = []")
            continue
        lines.append(f"{setting} = [")
        lines += [f'    "{entry.requirement}", # {entry.reference}' for entry in chosen]
        lines.append("]")
    return "\n".join([*lines, END])


def splice(pyproject: str, block: str) -> str:
    """``pyproject`` with its marked block replaced.

    Raises:
        OverridesError: The markers are not there, once each and in order.
    """
    start, end = pyproject.find(BEGIN), pyproject.find(END)
    if start < 0 or end < start or pyproject.count(BEGIN) != 1 or pyproject.count(END) != 1:
        raise OverridesError("root pyproject: expected the two GENERATED OVERRIDES markers once each, in order.")
    return pyproject[:start] + block + pyproject[end + len(END) :]


def problems(entries: Sequence[Entry], lock: Mapping[str, Any], today: dt.date) -> list[str]:
    """Entries that are past their review date, or whose package is no longer in the lock."""
    locked = {normalise(package["name"]) for package in lock.get("package", [])}
    found = []
    for entry in entries:
        if entry.review_by < today:
            found.append(
                f"{entry.name}: review_by={entry.review_by} has passed. Look whether {entry.reference} still needs it; "
                "then drop the entry or move the date."
            )
        if Requirement.parse(entry.name).name not in locked:
            found.append(f"{entry.name}: no longer in uv.lock, so the entry changes nothing. Drop it.")
    return found


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT, today: dt.date | None = None) -> int:
    """Entry point; returns the process exit code (0 in order, 1 not)."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.render_overrides", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is out of order")
    options = parser.parse_args(argv)
    pyproject = root / "pyproject.toml"
    try:
        entries = read_entries((root / "infra" / "overrides.toml").read_text(encoding="utf-8"))
        before = pyproject.read_text(encoding="utf-8")
        after = splice(before, render(entries))
        lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))
    except (OverridesError, WorkspaceError, tomllib.TOMLDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = problems(entries, lock, today or dt.datetime.now(dt.UTC).date())
    if options.check and after != before:
        found.append("root pyproject differs from infra/overrides.toml. Run `python -m infra.render_overrides`.")
    elif after != before:
        pyproject.write_text(after, encoding="utf-8")
        print("rewrote the generated block of pyproject.toml; run `uv lock` next")
    for sentence in found:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
