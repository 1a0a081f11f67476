"""Which code made a lineage: commits, and the patches of working copies that were dirty."""

from __future__ import annotations

from collections.abc import Sequence

from marin.execution.patches import patch_path
from marin.execution.records import read_text
from marin.reports.audit_lineage import Ancestor
from marin.reports.audit_view import CodeState


def code_states(prefix: str, lineage: Sequence[Ancestor]) -> list[CodeState]:
    """The states of the code that a lineage ran, each once, the oldest step's first.

    Args:
        prefix: Root of the store, which keeps the patches.
        lineage: The steps.
    """
    steps: dict[tuple[object, ...], list[str]] = {}
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for step in lineage:
        if step.record is None or not step.record.provenance:
            continue
        data = step.record.provenance
        command = tuple(data.get("command_line") or ())
        key = (data.get("base_commit"), data.get("tree_hash"), data.get("dirty"), data.get("patch"), command)
        found[key] = data
        steps.setdefault(key, []).append(step.label)
    return [_state(prefix, data, steps[key]) for key, data in found.items()]


def _state(prefix: str, data: dict[str, object], steps: list[str]) -> CodeState:
    patch = str(data.get("patch") or "")
    command = data.get("command_line")
    return CodeState(
        commit=str(data.get("base_commit") or ""),
        tree=str(data.get("tree_hash") or ""),
        dirty=bool(data.get("dirty")),
        branch=str(data.get("branch") or ""),
        remote=str(data.get("git_remote") or ""),
        built_by=str(data.get("built_by") or ""),
        command=[str(part) for part in command] if isinstance(command, list | tuple) else [],
        patch=patch,
        patch_text=read_text(patch_path(prefix, patch)) if patch else None,
        patch_redacted=bool(data.get("patch_redacted")),
        patch_applies=bool(data.get("patch_applies", not data.get("patch_redacted"))),
        steps=steps,
    )
