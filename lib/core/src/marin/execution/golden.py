"""Golden plans: the recipe of every step of an experiment as a file in the repository, so that no change is silent.

A recipe that changes under a fixed version would serve old results as if they were new, and one that changes under a
derived version starts expensive work again; both usually come from an edit somewhere else. A golden plan holds each
step's canonical recipe as readable JSON. The check compares it with the plan that the code makes now and shows the
difference field by field. ``update`` accepts changes, but never one under a fixed version: that needs a new version.

Hashes do not appear in it, so one changed literal shows as one changed line, not as a new address for everything that
is made from it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from marin.errors import CorruptRecordError
from marin.execution.fingerprint import describe_drift
from marin.execution.step_spec import StepSpec
from marin.execution.versions import VersionKind, version_kind

GOLDEN_FORMAT = 1

_DERIVED_HASH = re.compile(r"(?<=auto)-[0-9a-f]{16}(?![0-9a-f])")


class ChangeKind(StrEnum):
    """How a plan differs from its golden one."""

    DRIFTED = "drifted"
    """The recipe changed under a fixed version: refused."""
    CHANGED = "changed"
    """The recipe changed under a derived or mutable version."""
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True)
class PlanChange:
    """One difference.

    Attributes:
        step: ``name@version``, without hashes.
        kind: How it differs.
        lines: Fields that changed, ``field: old -> new``.
    """

    step: str
    kind: ChangeKind
    lines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON object of every field."""
        return asdict(self)


@dataclass(frozen=True)
class GoldenPlan:
    """The recipes of an experiment.

    Attributes:
        arguments: The experiment's own options with which the plan was made.
        steps: Canonical recipe of each step as JSON values, by ``name@version`` without hashes.
    """

    arguments: tuple[str, ...]
    steps: Mapping[str, Any]

    def text(self) -> str:
        """The file."""
        data = {"golden_format": GOLDEN_FORMAT, "arguments": list(self.arguments), "steps": dict(self.steps)}
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def golden_plan(specs: Iterable[StepSpec], arguments: Iterable[str] = ()) -> GoldenPlan:
    """The golden plan of steps.

    Example:
        >>> spec = StepSpec(name="tokens", version="2026.12.01", hash_attrs={"vocab": 4096})
        >>> golden_plan([spec]).steps["tokens@2026.12.01"]["attrs"]
        {'vocab': 4096}
    """
    steps = {_DERIVED_HASH.sub("", _label(spec)): json.loads(_DERIVED_HASH.sub("", spec.payload)) for spec in specs}
    return GoldenPlan(tuple(arguments), steps)


def _label(spec: StepSpec) -> str:
    # A hand-written spec is addressed by its hash, which would hide that it is the same step with another recipe.
    return f"{spec.name}@{spec.version}" if spec.version is not None else spec.name


def parse_golden(path: str, text: str) -> GoldenPlan:
    """Read a golden plan.

    Raises:
        CorruptRecordError: It is not one.
    """
    try:
        data = json.loads(text)
        if data["golden_format"] != GOLDEN_FORMAT:
            raise CorruptRecordError(path, f"golden_format={data['golden_format']!r}, expected {GOLDEN_FORMAT}")
        arguments, steps = data["arguments"], data["steps"]
        if not isinstance(steps, dict) or not all(isinstance(item, str) for item in arguments):
            raise CorruptRecordError(path, "its steps are no object, or its arguments no texts")
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, CorruptRecordError):
            raise
        raise CorruptRecordError(path, f"it is not a golden plan ({type(error).__name__}: {error})") from None
    return GoldenPlan(tuple(arguments), steps)


def compare_plans(golden: GoldenPlan, current: GoldenPlan) -> list[PlanChange]:
    """How a plan differs from its golden one; empty when it does not.

    Args:
        golden: The plan on file.
        current: The plan that the code makes.
    Returns:
        Differences, those under fixed versions first.
    Example:
        >>> old = golden_plan([StepSpec(name="tokens", version="2026.12.01", hash_attrs={"vocab": 4096})])
        >>> new = golden_plan([StepSpec(name="tokens", version="2026.12.01", hash_attrs={"vocab": 8192})])
        >>> [(change.step, change.kind.value, change.lines) for change in compare_plans(old, new)]
        [('tokens@2026.12.01', 'drifted', ('attrs.vocab: 4096 -> 8192',))]
    """
    changes = []
    for step in sorted(golden.steps.keys() | current.steps.keys()):
        if step not in current.steps:
            changes.append(PlanChange(step, ChangeKind.REMOVED))
        elif step not in golden.steps:
            changes.append(PlanChange(step, ChangeKind.ADDED))
        elif golden.steps[step] != current.steps[step]:
            lines = describe_drift(json.dumps(golden.steps[step]), json.dumps(current.steps[step]))
            changes.append(PlanChange(step, _kind(step), tuple(lines)))
    order = list(ChangeKind)
    return sorted(changes, key=lambda change: (order.index(change.kind), change.step))


def _kind(step: str) -> ChangeKind:
    version = step.partition("@")[2]
    fixed = bool(version) and version_kind(version) is VersionKind.FIXED
    return ChangeKind.DRIFTED if fixed else ChangeKind.CHANGED
