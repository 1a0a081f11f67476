"""The terms of a source, read from the recipe that names it.

A recipe declares a source by holding a value with a field ``licence``: ``marin.datakit.sources.Source``, any dataclass
of the author's own, or a plain dict. The terms are thereby part of the identity of everything built from the source.
Fields that are read, where they exist:

=================  =====================================================================================
``licence``        SPDX expression; ``LicenseRef-unknown`` when nobody has said
``kind`` ``location`` ``revision``   make the label ``kind:location@revision``; else ``id``, ``name`` or ``uri``
``allowed_uses``   list of ``train``, ``eval``, ``redistribute``; absent means that the licence alone decides
``eval_suite``     the source is (a part of) this evaluation suite
``pii_risk``       ``none``, ``reviewed``, ``unknown``; absent is unknown
=================  =====================================================================================

A step that removes an evaluation suite's text from what it hands on says so with a field ``decontaminates``, a list of
suites.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marin.policy.spdx import UNKNOWN_LICENCE

USES = ("train", "eval", "redistribute")
PII_RISKS = ("none", "reviewed", "unknown")


@dataclass(frozen=True, kw_only=True)
class SourceTerms:
    """Under which terms one source comes.

    Attributes:
        label: ``kind:location@revision``, or the step's name for adopted data.
        licence: SPDX expression.
        allowed_uses: What the provider allows; None when the licence alone decides.
        eval_suite: Evaluation suite that it belongs to, or an empty string.
        pii_risk: ``none``, ``reviewed`` or ``unknown``.
        evidence: Where the terms can be read, or an empty string.
    """

    label: str
    licence: str = UNKNOWN_LICENCE
    allowed_uses: tuple[str, ...] | None = None
    eval_suite: str = ""
    pii_risk: str = "unknown"
    evidence: str = ""

    @property
    def place(self) -> str:
        """The label without its revision.

        Example:
            >>> SourceTerms(label="hf:openai/gsm8k@main").place
            'hf:openai/gsm8k'
        """
        return self.label.partition("@")[0]

    def matches(self, reference: str) -> bool:
        """Whether a reference in a policy means this source: its label, with or without the revision."""
        return reference in (self.label, self.place)


def declared_sources(payload: str, *, step: str) -> list[SourceTerms]:
    """Every source that a recipe declares.

    Args:
        payload: Canonical text of the recipe.
        step: Name of the step, the label of a source that has no name of its own.
    Example:
        >>> declared_sources('{"config":{"licence":"MIT","id":"web"},"deps":[]}', step="raw")[0].label
        'web'
    """
    if '"licence"' not in payload:
        return []
    found = [_terms(item, step) for item in _objects(json.loads(payload)) if isinstance(item.get("licence"), str)]
    return list(dict.fromkeys(found))


def declared_suites(payload: str) -> tuple[str, ...]:
    """Evaluation suites whose text a recipe removes.

    Example:
        >>> declared_suites('{"config":{"decontaminates":["gsm8k@1"]},"deps":[]}')
        ('gsm8k@1',)
    """
    if '"decontaminates"' not in payload:
        return ()
    found: list[str] = []
    for item in _objects(json.loads(payload)):
        found.extend(_texts(item.get("decontaminates")) or ())
    return tuple(dict.fromkeys(found))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping and dataclass below a canonical value, as plain fields."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            fields = item.get("fields") if "$dataclass" in item else item
            if isinstance(fields, dict):
                yield fields
                stack.extend(reversed(fields.values()))


def _text(value: Any) -> str:
    if isinstance(value, dict) and "$enum" in value:
        value = value.get("value")
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, dict):
        value = next((value[tag] for tag in ("$tuple", "$set", "$frozenset") if tag in value), None)
    if not isinstance(value, list):
        return None
    return tuple(sorted(filter(None, (_text(item) for item in value))))


def _terms(fields: dict[str, Any], step: str) -> SourceTerms:
    kind, location, revision = (_text(fields.get(name)) for name in ("kind", "location", "revision"))
    if kind and location:
        label = f"{kind}:{location}" + (f"@{revision}" if revision else "")
    else:
        label = next(filter(None, (_text(fields.get(name)) for name in ("id", "name", "uri", "location"))), step)
    return SourceTerms(
        label=label,
        licence=fields["licence"] or UNKNOWN_LICENCE,
        allowed_uses=_texts(fields.get("allowed_uses")),
        eval_suite=_text(fields.get("eval_suite")),
        pii_risk=_text(fields.get("pii_risk")) or "unknown",
        evidence=_text(fields.get("terms_url")) or _text(fields.get("evidence")),
    )
