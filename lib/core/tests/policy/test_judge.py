"""What a policy says about graphs: property tests over random ones, and one case for every rule."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.policy import PolicyNode, SourceTerms, judge, parse_policy
from marin.policy.spdx import accepts

TODAY = dt.date(2026, 12, 1)
HEAD = "format = 1\n[kinds.train]\nallow = ['MIT']\nprotect_eval = true\n"


def policy(text=""):
    return parse_policy(HEAD + text, path="policy.toml")


def node(name, *deps, **fields):
    return PolicyNode(label=f"{name}@1", name=name, deps=tuple(f"{dep}@1" for dep in deps), **fields)


def source(label="web", licence="MIT", **fields):
    return (SourceTerms(label=label, licence=licence, **fields),)


def rules_of(judgement):
    return [refusal.rule for refusal in judgement.refusals]


@st.composite
def graphs(draw):
    """A random graph of up to 12 steps; some declare a source, some are trained."""
    count = draw(st.integers(2, 12))
    nodes = []
    for number in range(count):
        deps = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        declares = draw(st.sampled_from(["", "MIT", "CC-BY-NC-4.0"]))
        nodes.append(
            node(
                f"s{number}",
                *(f"s{dep}" for dep in sorted(deps)),
                sources=source(f"src{number}", declares) if declares else (),
                purpose="train" if draw(st.booleans()) else "",
            )
        )
    return nodes


def ancestors(nodes, label):
    by_label = {item.label: item for item in nodes}
    found, stack = set(), [label]
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(by_label[current].deps)
    return found


@given(graphs())
def test_a_step_is_refused_exactly_when_a_forbidden_licence_lies_upstream_and_the_path_is_real(nodes):
    judgement = judge(policy(), nodes, TODAY)
    by_label = {item.label: item for item in nodes}
    expected = {
        (item.label, terms.label)
        for item in nodes
        if item.purpose == "train"
        for above in ancestors(nodes, item.label)
        for terms in by_label[above].sources
        if terms.licence != "MIT"
    }
    assert {(refusal.step, refusal.subject) for refusal in judgement.refusals} == expected
    for refusal in judgement.refusals:
        label, first, *rest = refusal.path
        assert label in [terms.label for terms in by_label[first].sources]
        for above, below in zip([first, *rest], rest, strict=False):
            assert above in by_label[below].deps
        assert refusal.path[-1] == refusal.step


@given(graphs())
def test_licences_are_the_union_of_everything_upstream(nodes):
    judgement = judge(policy(), nodes, TODAY)
    by_label = {item.label: item for item in nodes}
    for item in nodes:
        above = {terms.licence for label in ancestors(nodes, item.label) for terms in by_label[label].sources}
        assert judgement.clearances[item.label].licences == tuple(sorted(above))


WAIVER = "[[waiver]]\nref = '{ref}'\nrule = '{rule}'\nreason = 'agreed'\nby = 'Ada'\nexpires = 2026-12-01\n{more}"
NC = [node("raw", sources=source("hf:acme/web@main", "CC-BY-NC-4.0")), node("model", "raw", purpose="train")]


@pytest.mark.parametrize("ref", ["hf:acme/web@main", "hf:acme/web", "model", "model@1"])
def test_a_waiver_lifts_its_rule_and_is_on_record_below(ref):
    judgement = judge(policy(WAIVER.format(ref=ref, rule="licence", more="")), [*NC, node("export", "model")], TODAY)
    assert judgement.refusals == () and judgement.unused == ()
    assert judgement.clearances["raw@1"].waivers == ()
    for label in ("model@1", "export@1"):
        assert judgement.clearances[label].waivers[0]["by"] == "Ada"


@given(st.dates(dt.date(2026, 11, 1), dt.date(2027, 1, 31)))
def test_a_waiver_holds_until_its_day_is_over(today):
    judgement = judge(policy(WAIVER.format(ref="hf:acme/web", rule="licence", more="")), NC, today)
    assert bool(judgement.refusals) == (today > dt.date(2026, 12, 1))
    if judgement.refusals:
        assert "the waiver by Ada expired on 2026-12-01" in judgement.refusals[0].reason


@pytest.mark.parametrize(
    ("ref", "rule", "more"),
    [("hf:acme/other", "licence", ""), ("hf:acme/web", "use", ""), ("hf:acme/web", "licence", "step = 'other'")],
)
def test_a_waiver_lifts_nothing_else(ref, rule, more):
    judgement = judge(policy(WAIVER.format(ref=ref, rule=rule, more=more)), NC, TODAY)
    assert rules_of(judgement) == ["licence"] and len(judgement.unused) == 1


def test_terms_in_the_policy_go_over_what_a_recipe_says():
    stated = "[[source]]\nref = 'hf:acme/web'\nlicence = 'MIT'\nallowed_uses = ['eval']\n"
    judgement = judge(policy(stated), NC, TODAY)
    assert rules_of(judgement) == ["use"]
    assert judgement.sources["raw@1"][0].licence == "MIT" and judgement.sources["raw@1"][0].label == "hf:acme/web@main"


def test_uses_that_the_provider_does_not_allow_are_refused():
    nodes = [node("raw", sources=source(allowed_uses=("eval",))), node("model", "raw", purpose="train")]
    refusal = judge(policy(), nodes, TODAY).refusals[0]
    assert refusal.rule == "use" and "may be used for eval only" in refusal.reason


def test_data_that_no_step_made_needs_terms_of_its_own():
    nodes = [node("pin", external=True), node("model", "pin", purpose="train")]
    assert "licence of pin is unknown" in judge(policy(), nodes, TODAY).refusals[0].reason
    assert judge(policy("[[source]]\nref = 'pin'\nlicence = 'MIT'\n"), nodes, TODAY).refusals == ()


def test_personal_data_has_to_be_reviewed_where_the_policy_says_so():
    rules = policy("require = { pii = 'reviewed' }\n")
    for risk, expected in [("unknown", ["pii"]), ("reviewed", []), ("none", [])]:
        nodes = [node("raw", sources=source(pii_risk=risk)), node("model", "raw", purpose="train")]
        assert rules_of(judge(rules, nodes, TODAY)) == expected


EVAL = "[eval_sets]\ngsm8k = ['hf:openai/gsm8k']\n"
GSM8K = source("hf:openai/gsm8k@main")


def test_an_evaluation_set_may_not_reach_training_but_may_be_measured_with():
    nodes = [node("test-set", sources=GSM8K), node("mixed", "test-set"), node("model", "mixed", purpose="train")]
    nodes.append(node("score", "model", "test-set", purpose="eval"))
    refusal = judge(policy(EVAL), nodes, TODAY).refusals[0]
    assert (refusal.rule, refusal.step) == ("eval_set", "model@1")
    assert refusal.path == ("hf:openai/gsm8k@main", "test-set@1", "mixed@1", "model@1")
    unprotected = parse_policy(HEAD.replace("true", "false") + EVAL, path="p")
    assert judge(unprotected, nodes, TODAY).refusals == ()


def test_a_source_says_itself_that_it_is_an_evaluation_set():
    nodes = [node("mine", sources=source(eval_suite="exam@1")), node("model", "mine", purpose="train")]
    assert rules_of(judge(policy(), nodes, TODAY)) == ["eval_set"]


def decontaminated(*, marks, direct=False, apart=False):
    """Documents and an evaluation set, a decontaminating step, and a model."""
    nodes = [node("test-set", sources=GSM8K), node("docs", sources=source())]
    nodes.append(node("decon", "docs", "test-set", decontaminates=("gsm8k",)))
    nodes.append(node("corpus", "docs", "decon") if marks else node("corpus", "decon"))
    nodes.append(node("other", sources=source("more")))
    deps = ["corpus", *(["test-set"] if direct else []), *(["other"] if apart else [])]
    return [*nodes, node("model", *deps, purpose="train")]


@pytest.mark.parametrize("marks", [True, False], ids=["marks beside the documents", "documents rewritten"])
def test_an_evaluation_set_that_is_read_to_be_removed_is_no_leak(marks):
    rules = policy("require = { decon = ['gsm8k'] }\n" + EVAL)
    assert judge(rules, decontaminated(marks=marks), TODAY).refusals == ()
    assert rules_of(judge(rules, decontaminated(marks=marks, direct=True), TODAY)) == ["eval_set"]


def test_every_path_to_training_has_to_be_decontaminated():
    rules = policy("require = { decon = ['gsm8k'] }\n" + EVAL)
    refusal = judge(rules, decontaminated(marks=True, apart=True), TODAY).refusals[0]
    assert (refusal.rule, refusal.subject, refusal.path) == ("decontamination", "gsm8k", ("more", "other@1", "model@1"))
    nodes = [node("docs", sources=source()), node("model", "docs", purpose="train")]
    assert rules_of(judge(rules, nodes, TODAY)) == ["decontamination"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True), ("mit", True), ("GPL-3.0-only", False), ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT AND ISC", False), ("(GPL-3.0-only OR MIT) AND MIT", True), ("MIT AND", False),
        ("", False), ("MIT MIT", False), ("((MIT))", True), ("OR", False), ("MIT WITH Classpath-exception-2.0", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False), ("MIT)", False), ("Proprietary, ask us", False),
    ],
)  # fmt: skip
def test_licence_expressions(expression, expected):
    assert accepts(expression, {"mit"}.__contains__) is expected


@given(st.text())
def test_no_text_makes_the_reader_of_expressions_fail(text):
    assert accepts(text, lambda licence: False) is False


def test_ten_thousand_sources_are_judged_in_a_moment():
    import time

    nodes = [node(f"leaf{n}", sources=source(f"src{n}")) for n in range(10_000)]
    nodes.append(node("model", *(f"leaf{n}" for n in range(10_000)), purpose="train"))
    begun = time.process_time()
    assert judge(policy("require = { decon = ['gsm8k'] }\n"), nodes, TODAY).refusals[9_999].rule == "decontamination"
    assert time.process_time() - begun < 30.0
