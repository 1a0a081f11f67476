"""The judgement of a graph under a policy; pure.

Sources travel downwards: what reaches a step is the union of what its inputs are made from and what it reads itself.
Each source is one bit of an integer, so a graph of ten thousand steps costs ten thousand ORs; the ways from sources
are walked once a restricted step.
"""

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from marin.execution.gates import Clearance, Refusal
from marin.policy.rules import KindRules, Policy, Waiver
from marin.policy.spdx import UNKNOWN_LICENCE
from marin.policy.terms import USES, SourceTerms


@dataclass(frozen=True, kw_only=True)
class PolicyNode:
    """What a policy needs to know about one step.

    Attributes:
        label: ``name@version``.
        name: Step name.
        deps: Labels of the steps it reads.
        purpose: Its kind, or an empty string for plain data processing.
        sources: Sources that its recipe declares.
        decontaminates: Suites whose text it removes.
        external: Whether it stands for data that no step made (a pin, an adoption) and whose terms it must declare.
    """

    label: str
    name: str
    deps: tuple[str, ...] = ()
    purpose: str = ""
    sources: tuple[SourceTerms, ...] = ()
    decontaminates: tuple[str, ...] = ()
    external: bool = False


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a policy says about a graph.

    Attributes:
        refusals: Why it is refused, in the order of steps.
        clearances: Licences and waivers of each step, by label.
        sources: Every source with the terms that were applied, by label of the step that reads it.
        unused: Waivers in force that nothing needs.
    """

    refusals: tuple[Refusal, ...]
    clearances: Mapping[str, Clearance]
    sources: Mapping[str, tuple[SourceTerms, ...]]
    unused: tuple[Waiver, ...] = ()


def judge(policy: Policy, nodes: Sequence[PolicyNode], today: dt.date) -> Judgement:
    """Judge a graph.

    Args:
        policy: The rules.
        nodes: Steps, inputs before what reads them; labels that no node has are ignored.
        today: Day for which waivers must hold, UTC.
    Returns:
        Refusals and clearances.
    Example:
        >>> from marin.policy.policy_file import load_policy
        >>> raw = PolicyNode(label="raw@1", name="raw", sources=(SourceTerms(label="web"),))
        >>> model = PolicyNode(label="model@1", name="model", deps=("raw@1",), purpose="train")
        >>> judge(load_policy(default=True), [raw, model], dt.date(2026, 12, 1)).refusals[0].path
        ('web', 'raw@1', 'model@1')
    """
    return _Case(policy, nodes, today).judgement()


@dataclass
class _Case:
    """One judgement in the making."""

    policy: Policy
    nodes: Sequence[PolicyNode]
    today: dt.date
    by_label: dict[str, PolicyNode] = field(init=False)
    sources: list[SourceTerms] = field(init=False, default_factory=list)
    readers: list[str] = field(init=False, default_factory=list)
    own: dict[str, int] = field(init=False, default_factory=dict)
    used: set[Waiver] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.by_label = {node.label: node for node in self.nodes}
        for node in self.nodes:
            bits = 0
            for terms in self._terms_of(node):
                bits |= 1 << len(self.sources)
                self.sources.append(terms)
                self.readers.append(node.label)
            self.own[node.label] = bits

    def judgement(self) -> Judgement:
        reach = self._spread()
        licences = [terms.licence for terms in self.sources]
        refusals: list[Refusal] = []
        waivers: dict[str, tuple[Waiver, ...]] = {}
        for node in self.nodes:
            inherited = [waiver for dep in node.deps for waiver in waivers.get(dep, ())]
            rules = self.policy.rules_for(node.purpose)
            found = list(self._refusals(node, rules, reach[node.label])) if rules is not None else []
            lifted: list[Waiver] = []
            for refusal in found:
                waiver = self._waiver_for(refusal)
                if waiver is None:
                    refusals.append(self._with_expired(refusal))
                else:
                    lifted.append(waiver)
            waivers[node.label] = tuple(dict.fromkeys([*inherited, *lifted]))
            self.used.update(lifted)
        clearances = {
            label: Clearance(
                licences=tuple(sorted({licences[bit] for bit in _bits(mask)})),
                waivers=tuple(waiver.to_json() for waiver in waivers[label]),
            )
            for label, mask in reach.items()
        }
        by_reader: dict[str, tuple[SourceTerms, ...]] = {}
        for label, terms in zip(self.readers, self.sources, strict=True):
            by_reader[label] = (*by_reader.get(label, ()), terms)
        unused = tuple(w for w in self.policy.waivers if w.holds(self.today) and w not in self.used)
        return Judgement(refusals=tuple(refusals), clearances=clearances, sources=by_reader, unused=unused)

    # ---- terms -------------------------------------------------------------------------------------------------------

    def _terms_of(self, node: PolicyNode) -> list[SourceTerms]:
        declared = list(node.sources)
        if node.external and not declared:
            declared = [SourceTerms(label=node.name, licence=UNKNOWN_LICENCE)]
        return [self._looked_up(terms, node) for terms in declared]

    def _looked_up(self, terms: SourceTerms, node: PolicyNode) -> SourceTerms:
        stated = next(
            (item for ref, item in self.policy.sources.items() if terms.matches(ref) or ref in (node.name, node.label)),
            None,
        )
        if stated is not None:
            suite = stated.eval_suite or terms.eval_suite
            terms = dataclasses.replace(stated, label=terms.label, eval_suite=suite)
        for suite, places in self.policy.eval_sets.items():
            if any(terms.matches(place) for place in places):
                return dataclasses.replace(terms, eval_suite=terms.eval_suite or suite)
        return terms

    def _spread(self) -> dict[str, int]:
        """Sources that reach each step."""
        reach: dict[str, int] = {}
        for node in self.nodes:
            mask = self.own[node.label]
            for dep in node.deps:
                mask |= reach.get(dep, 0)
            reach[node.label] = mask
        return reach

    # ---- rules -------------------------------------------------------------------------------------------------------

    def _refusals(self, node: PolicyNode, rules: KindRules, mask: int) -> Iterator[Refusal]:
        if not mask:
            return
        kind = node.purpose
        ways = self._ways(node, lambda step: False)
        uncleaned: dict[str, dict[str, str]] = {}
        for bit in _bits(mask):
            terms = self.sources[bit]
            if suite := terms.eval_suite:
                if suite not in uncleaned:
                    uncleaned[suite] = self._ways(node, lambda step, suite=suite: suite in step.decontaminates)
                if not self._path(uncleaned[suite], bit):
                    continue  # read only to be removed from the text
                if rules.protect_eval:
                    reason = f"{terms.label} belongs to the evaluation suite {suite} and reaches a {kind} step"
                    remedy = "Take the evaluation set out of what this step is made from."
                    yield self._refusal("eval_set", node, bit, reason, remedy, uncleaned[suite])
                    continue
            if not rules.accepts(terms.licence):
                yield self._refusal("licence", node, bit, *_licence_words(terms, kind), ways)
            use = kind if kind in USES else "train"
            if terms.allowed_uses is not None and use not in terms.allowed_uses:
                uses = ", ".join(terms.allowed_uses) or "nothing"
                reason = f"{terms.label} may be used for {uses} only, and this is a {kind} step"
                remedy = "Leave the source out, or agree on that use with its owner."
                yield self._refusal("use", node, bit, reason, remedy, ways)
            if rules.pii == "reviewed" and terms.pii_risk not in ("none", "reviewed"):
                reason = f"{terms.label} has not been reviewed for personal data"
                remedy = 'Review it and state pii_risk = "reviewed" for the source.'
                yield self._refusal("pii", node, bit, reason, remedy, ways)
        for suite in rules.decon:
            yield from self._undecontaminated(node, suite)

    def _undecontaminated(self, node: PolicyNode, suite: str) -> Iterator[Refusal]:
        """Refuse when text can reach the step on a way on which the suite's text is never removed.

        A step that reads the marks of a decontaminating step beside the documents is where the text is removed, so it
        counts as clean too.
        """

        def clean(step: PolicyNode) -> bool:
            marks = any(suite in self.by_label[dep].decontaminates for dep in step.deps if dep in self.by_label)
            return suite in step.decontaminates or marks

        if clean(node):
            return
        ways = self._ways(node, clean)
        for bit, reader in enumerate(self.readers):
            if reader in ways and self.sources[bit].eval_suite != suite:
                reason = f"{self.sources[bit].label} was not decontaminated against {suite}"
                remedy = f"Put a step that decontaminates against {suite} on this path."
                yield self._refusal("decontamination", node, bit, reason, remedy, ways, subject=suite)

    def _refusal(
        self,
        rule: str,
        node: PolicyNode,
        bit: int,
        reason: str,
        remedy: str,
        ways: Mapping[str, str],
        *,
        subject: str = "",
    ) -> Refusal:
        return Refusal(
            rule=rule,
            step=node.label,
            name=node.name,
            kind=node.purpose,
            subject=subject or self.sources[bit].label,
            reason=reason,
            path=self._path(ways, bit),
            remedy=remedy,
        )

    def _ways(self, node: PolicyNode, stops: Callable[[PolicyNode], bool]) -> dict[str, str]:
        """For every step upstream that is reached without passing ``stops``: the next step on a shortest way down."""
        parents: dict[str, str] = {node.label: ""}
        queue = [node.label]
        for label in queue:
            for dep in self.by_label[label].deps:
                if dep in self.by_label and dep not in parents and not stops(self.by_label[dep]):
                    parents[dep] = label
                    queue.append(dep)
        return parents

    def _path(self, ways: Mapping[str, str], bit: int) -> tuple[str, ...]:
        """The way of a source; empty when it has none."""
        reader = self.readers[bit]
        if reader not in ways:
            return ()
        way = [reader]
        while ways[way[-1]]:
            way.append(ways[way[-1]])
        return (self.sources[bit].label, *way)

    # ---- waivers -----------------------------------------------------------------------------------------------------

    def _matching(self, refusal: Refusal) -> list[Waiver]:
        source = refusal.path[0] if refusal.path else refusal.subject
        names = {refusal.subject, source, source.partition("@")[0], refusal.step, refusal.name}
        return [
            waiver
            for waiver in self.policy.waivers
            if waiver.rule == refusal.rule and waiver.ref in names and waiver.step in ("", refusal.step, refusal.name)
        ]

    def _waiver_for(self, refusal: Refusal) -> Waiver | None:
        return next((waiver for waiver in self._matching(refusal) if waiver.holds(self.today)), None)

    def _with_expired(self, refusal: Refusal) -> Refusal:
        expired = self._matching(refusal)
        if not expired:
            return refusal
        last = max(expired, key=lambda waiver: waiver.expires)
        note = f"; the waiver by {last.by} expired on {last.expires.isoformat()}"
        return dataclasses.replace(refusal, reason=refusal.reason + note)


def _licence_words(terms: SourceTerms, kind: str) -> tuple[str, str]:
    if terms.licence == UNKNOWN_LICENCE:
        reason = f"the licence of {terms.label} is unknown"
        return (
            reason,
            "State the licence of the source (--licence SPDX where a script has it, or [[source]] in policy.toml).",
        )
    reason = f"{terms.label} is under {terms.licence}, which a {kind} step may not be made from"
    return reason, "Leave the source out, allow its licence in policy.toml, or add a [[waiver]] there."


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
