"""What a policy says, as plain data."""

import dataclasses
import datetime as dt
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marin.policy.spdx import accepts
from marin.policy.terms import SourceTerms

RULES = ("licence", "use", "eval_set", "decontamination", "pii")
"""Stable names of the rules, as waivers name them."""


@dataclass(frozen=True, kw_only=True)
class KindRules:
    """What steps of one kind may be made from.

    Attributes:
        allow: SPDX identifiers that are acceptable; ``*`` accepts every licence, also an unknown one.
        deny: Identifiers that are not, whatever ``allow`` says.
        decon: Evaluation suites whose text must have been removed from everything that reaches the step.
        pii: ``reviewed`` when every source must have been looked through for personal data.
        protect_eval: Whether evaluation sets may not reach the step.
    """

    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    decon: tuple[str, ...] = ()
    pii: str = ""
    protect_eval: bool = False

    def accepts(self, licence: str) -> bool:
        """Whether a licence expression is acceptable.

        Example:
            >>> rules = KindRules(allow=frozenset({"MIT", "GPL-3.0-only"}), deny=frozenset({"GPL-3.0-only"}))
            >>> rules.accepts("MIT OR GPL-3.0-only"), rules.accepts("GPL-3.0-only")
            (True, False)
        """
        return _accepts(self, licence)


@functools.lru_cache(maxsize=1024)
def _accepts(rules: KindRules, licence: str) -> bool:
    """A plan asks about few different licences, however many sources it has."""
    allowed, denied = ({item.lower() for item in items} for items in (rules.allow, rules.deny))
    everything = "*" in rules.allow
    if everything and not denied:
        return True
    return accepts(licence, lambda item: (everything or item in allowed) and item not in denied)


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A named exception.

    Attributes:
        ref: The source (with or without its revision), the suite, or the step that it is about.
        rule: The rule that it lifts.
        reason: Why that is right.
        by: Who answers for it.
        expires: Last day on which it holds, in UTC.
        step: Only for this step; empty means for all.
    """

    ref: str
    rule: str
    reason: str
    by: str
    expires: dt.date
    step: str = ""

    def holds(self, today: dt.date) -> bool:
        """Whether it is still in force."""
        return today <= self.expires

    def to_json(self) -> dict[str, Any]:
        """JSON object for records, events and pages."""
        data = {"ref": self.ref, "rule": self.rule, "reason": self.reason, "by": self.by}
        return data | {"expires": self.expires.isoformat()} | ({"step": self.step} if self.step else {})


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A whole policy.

    Attributes:
        label: File name and the first digits of its SHA-256, as records name it.
        kinds: Rules by kind; ``default`` stands for kinds that are not listed.
        eval_sets: Sources of every protected evaluation suite.
        sources: Terms that the policy states for sources, over what recipes say; by reference.
        waivers: Exceptions.
    """

    label: str
    kinds: Mapping[str, KindRules] = field(default_factory=dict)
    eval_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, SourceTerms] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()

    def rules_for(self, kind: str) -> KindRules | None:
        """Rules for a kind of step; None when nothing restricts it (plain data processing never is)."""
        return (self.kinds.get(kind) or self.kinds.get("default")) if kind else None

    def to_json(self, today: dt.date) -> dict[str, Any]:
        """JSON object for ``--json``; waivers say whether they still hold."""
        return {
            "policy": self.label,
            "kinds": {
                name: {
                    "allow": sorted(rules.allow),
                    "deny": sorted(rules.deny),
                    "protect_eval": rules.protect_eval,
                    "decon": list(rules.decon),
                    "pii": rules.pii,
                }
                for name, rules in self.kinds.items()
            },
            "eval_sets": {suite: list(sources) for suite, sources in self.eval_sets.items()},
            "sources": [dataclasses.asdict(terms) for terms in self.sources.values()],
            "waivers": [{**waiver.to_json(), "holds": waiver.holds(today)} for waiver in self.waivers],
        }
