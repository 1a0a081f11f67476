"""Gates: what a plan may be made from, decided before anything runs.

The problem: that a model was trained on text nobody may use, or on the test set it is measured with, is found out
after the money is spent. The idea: every source says its terms inside the recipe that reads it, so the plan alone shows
which terms reach which step. A policy file says what each kind of step may be made from; a plan that breaks it is
refused with the path from the source to the step. Exceptions are waivers: named, reasoned, and over on a date.

Nothing here reads a store or the network, and nothing imports numerics.

Example:
    >>> from marin.policy import load_policy
    >>> "MIT" in load_policy(default=True).kinds["train"].allow
    True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marin.policy.gate import policy_gate
    from marin.policy.judgement import Judgement, PolicyNode, judge
    from marin.policy.policy_file import load_policy, parse_policy
    from marin.policy.rules import KindRules, Policy, Waiver
    from marin.policy.terms import SourceTerms, declared_sources

_EXPORTS = {
    "Judgement": "marin.policy.judgement",
    "KindRules": "marin.policy.rules",
    "Policy": "marin.policy.rules",
    "PolicyNode": "marin.policy.judgement",
    "SourceTerms": "marin.policy.terms",
    "Waiver": "marin.policy.rules",
    "declared_sources": "marin.policy.terms",
    "judge": "marin.policy.judgement",
    "load_policy": "marin.policy.policy_file",
    "parse_policy": "marin.policy.policy_file",
    "policy_gate": "marin.policy.gate",
}

__all__ = [
    "Judgement",
    "KindRules",
    "Policy",
    "PolicyNode",
    "SourceTerms",
    "Waiver",
    "declared_sources",
    "judge",
    "load_policy",
    "parse_policy",
    "policy_gate",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
