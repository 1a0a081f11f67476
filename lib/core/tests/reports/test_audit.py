"""An audit shows everything, proves what it can, fails when something is unverified, and its page is inert."""

import dataclasses
import datetime as dt
import html.parser
import json
import os
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marin.datakit.artifacts import ConsolidatedData, NormalizedData
from marin.errors import RecordNotFoundError
from marin.execution import Artifact, ArtifactStep, run
from marin.ledger import Ledger
from marin.ledger.hypotheses import Direction, Hypothesis, conclude, declare
from marin.policy import parse_policy, policy_gate
from marin.reports.audit import AuditOptions, _as_typed, audit_view
from marin.reports.audit_page import render_audit_page, write_audit_page
from marin.reports.audit_schema import audit_schema
from marin.reports.audit_view import (
    AttemptLine,
    AuditView,
    ClaimLine,
    CodeState,
    Cost,
    DecontaminationLine,
    LineageStep,
    LossLine,
    MaterialLine,
    MetricLine,
    PolicyLine,
)
from rigging.timing import ManualClock

POLICY = """format = 1
[kinds.train]
allow = ["MIT"]
require = { decon = ["exam@1"] }
[[waiver]]
ref = "web"
rule = "licence"
reason = "agreed"
by = "Ada"
expires = 2099-12-31
"""


class Model(Artifact):
    purpose = "train"
    loss: float


class Score(Artifact):
    purpose = "eval"
    bpb: float


def write(config):
    with open(os.path.join(config["out"], "data.txt"), "w") as file:
        file.write("text")


def graph(root):
    def config(**fields):
        return lambda ctx: {"out": ctx.output_path, **{k: v(ctx) if callable(v) else v for k, v in fields.items()}}

    def step(name, run=write, kind=Artifact, deps=(), **fields):
        build = config(**fields, inputs=lambda ctx: [ctx.artifact_path(dep) for dep in deps])
        return ArtifactStep(name, "2026.12.01", artifact_type=kind, run=run, build_config=build, deps=tuple(deps))

    web = step("web", source={"id": "web", "licence": "CC-BY-NC-4.0", "terms_url": "https://example.org/terms"})
    exam = step("exam", source={"id": "exam-set", "licence": "MIT", "eval_suite": "exam@1"})
    marks = step("marks", deps=[web, exam], rule={"decontaminates": ["exam@1"]})
    corpus = step(
        "corpus", lambda c: ConsolidatedData(num_documents={"train": 3}, num_bytes={"train": 30},
                                             num_dropped_duplicates=2, dropped_bytes=20),
        ConsolidatedData, [web, marks],
    )  # fmt: skip
    model = step("model", lambda c: Model(loss=1.5), Model, [corpus])
    score = step("score", lambda c: Score(bpb=0.9), Score, [model, exam])
    del root
    return model, score


@pytest.fixture
def store(tmp_path):
    model, score = graph(tmp_path)
    prefix = str(tmp_path / "store")
    ledger = Ledger(prefix)
    declare(ledger, Hypothesis(experiment="small", claim="it is small", metric="bpb", direction=Direction.BELOW,
                               threshold=0.5, step="score"))  # fmt: skip
    gate = policy_gate(parse_policy(POLICY, path="policy.toml"))
    assert run(model, score, prefix=prefix, gate=gate).ok
    conclude(ledger, "small", 0.9, evidence=["score@2026.12.01"])
    return ledger


def options(**values):
    return AuditOptions(**{"policy": parse_policy(POLICY, path="policy.toml"), **values})


def test_an_audit_shows_everything_about_an_output(store):
    view = audit_view(store, "model", options=options())
    assert view.ok and view.problems == []
    assert [step.name for step in view.lineage] == ["web", "exam", "marks", "corpus", "model"]
    assert {(item.source, item.licence) for item in view.materials} == {("web", "CC-BY-NC-4.0"), ("exam-set", "MIT")}
    assert view.materials[0].evidence == "https://example.org/terms"
    assert list(view.licences) == ["CC-BY-NC-4.0", "MIT"]
    assert [(w["by"], w["expired"]) for w in view.policy.waivers] == [("Ada", False)]
    (decon,) = view.decontamination
    assert (decon.suite, decon.required, decon.covered, decon.done_by) == ("exam@1", True, True, ["marks@2026.12.01"])
    (loss,) = view.losses
    assert loss.lost == {"near duplicates": 2, "bytes of them": 20} and loss.sources == ["web", "exam-set"]
    assert view.cost.attempts == 5 and view.cost.failed_attempts == 0 and len(view.attempts) == 5
    assert ("bpb", 0.9, "measured") in [(item.metric, item.value, item.relation) for item in view.metrics]
    assert ("loss", 1.5, "own") in [(item.metric, item.value, item.relation) for item in view.metrics]
    (claim,) = view.claims
    assert (claim.experiment, claim.outcome, claim.post_hoc) == ("small", "refuted", False)
    assert view.reproduce[-1].startswith("marin verify model@2026.12.01 --deep")


def test_the_json_twin_has_a_schema_and_survives_json(store):
    view = audit_view(store, "model", options=options())
    data = json.loads(json.dumps(view.to_json()))
    jsonschema.Draft202012Validator.check_schema(audit_schema())
    jsonschema.validate(data, audit_schema())
    assert set(data) == {field.name for field in dataclasses.fields(AuditView)}
    del data["ok"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, audit_schema())


def change_bytes(store):
    with open(os.path.join(store.prefix, "web", "2026.12.01", "data.txt"), "w") as file:
        file.write("tex!")


def remove_input(store):
    os.rename(os.path.join(store.prefix, "marks", "2026.12.01"), os.path.join(store.prefix, "gone"))


def tear_record(store):
    with open(os.path.join(store.prefix, "corpus", "2026.12.01", ".artifact.json"), "w") as file:
        file.write("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_bytes, "web@2026.12.01: changed content: data.txt"),
        (remove_input, "marks@2026.12.01: there is nothing"),
        (tear_record, "corpus@2026.12.01: a record is corrupt"),
    ],
)
def test_what_cannot_be_verified_makes_it_unverified(store, damage, message):
    damage(store)
    view = audit_view(store, "model", options=options())
    assert not view.ok and any(message in problem for problem in view.problems)
    assert "Unverified" in render_audit_page(view) and message in render_audit_page(view)


def test_a_shallow_audit_says_that_it_is_one(store):
    change_bytes(store)
    view = audit_view(store, "model", options=options(deep=False))
    assert view.ok and "files were compared by name and size only" in view.notes


def test_another_policy_may_refuse_what_was_allowed(store):
    strict = parse_policy(POLICY.split("[[waiver]]")[0], path="strict.toml")
    view = audit_view(store, "model", options=options(policy=strict))
    assert [refusal["rule"] for refusal in view.policy.refusals] == ["licence"] and not view.ok
    assert view.policy.recorded[0].startswith("policy.toml (")


def test_a_waiver_that_held_then_is_shown_as_over_now(store):
    text = POLICY.replace("2099-12-31", dt.datetime.now(dt.UTC).date().isoformat())
    later = ManualClock(start=dt.datetime(2098, 1, 1, tzinfo=dt.UTC).timestamp())
    view = audit_view(store, "model", options=options(policy=parse_policy(text, path="p"), clock=later))
    assert view.ok and {waiver["expires"]: waiver["expired"] for waiver in view.policy.waivers} == {
        dt.datetime.now(dt.UTC).date().isoformat(): True,
        "2099-12-31": False,
    }


def test_data_without_a_record_is_unverified_and_signatures_may_be_required(tmp_path, store):
    (tmp_path / "there").mkdir()
    pin = ArtifactStep("pin", "2026.12.01", override_path=str(tmp_path / "there"))
    reader = ArtifactStep(
        "reader", "2026.12.01", run=lambda c: None, build_config=lambda ctx: ctx.artifact_path(pin), deps=(pin,)
    )
    assert run(reader, prefix=store.prefix).ok
    view = audit_view(store, "reader", options=options())
    assert any("nobody recorded how it came about" in problem for problem in view.problems)
    assert any("it is not signed" in p or "without keys" in p
               for p in audit_view(store, "model", options=options(require_signature=True)).problems)  # fmt: skip


def test_failed_attempts_and_what_they_cost_are_on_the_page(tmp_path):
    prefix, tries = str(tmp_path), []

    def flaky(config):
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("first try <fails>")

    handle = ArtifactStep("flaky", "2026.12.01", run=flaky, build_config=lambda ctx: 1)
    assert not run(handle, prefix=prefix).ok and run(handle, prefix=prefix).ok
    view = audit_view(Ledger(prefix), "flaky", options=options())
    assert (view.cost.attempts, view.cost.failed_attempts) == (2, 1) and view.ok
    page = render_audit_page(view)
    assert "first try &lt;fails&gt;" in page and "failed: user_code" in page


def test_a_dirty_working_copy_needs_its_patch(store):
    for name in ("web", "model"):
        path = os.path.join(store.prefix, name, "2026.12.01", ".artifact.json")
        with open(path) as file:
            record = json.load(file)
        record["provenance"] = {
            "base_commit": "c0ffee",
            "tree_hash": "t",
            "dirty": True,
            "command_line": ["python", "x.py"],
        }
        if name == "model":
            record["provenance"]["patch"] = "ab"
        with open(path, "w") as file:
            json.dump(record, file)
    os.makedirs(os.path.join(store.prefix, "ledger", "patches"), exist_ok=True)
    with open(os.path.join(store.prefix, "ledger", "patches", "ab.patch"), "w") as file:
        file.write("--- a/<x>\n+++ b/<x>\n")
    view = audit_view(store, "model", options=options())
    assert view.problems == ["web@2026.12.01: the working copy was dirty and its patch was not kept"]
    assert "+++ b/&lt;x&gt;" in render_audit_page(view)
    assert view.reproduce[:3] == [
        "git checkout c0ffee",
        "git apply ab.patch   # kept in the store as ledger/patches/ab.patch",
        "python x.py",
    ]


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        (["/v/bin/python", "-m", "marin.cli", "run", "x.py"], ["marin", "run", "x.py"]),
        (["/v/bin/python3", "/v/bin/marin", "run", "x.py"], ["marin", "run", "x.py"]),
        (["/v/bin/python3.12", "x.py", "--n", "3"], ["python", "x.py", "--n", "3"]),
        (["make"], ["make"]),
        ([], []),
    ],
)
def test_a_command_is_shown_as_a_person_types_it(command, typed):
    assert _as_typed(command) == typed


def test_there_has_to_be_something_to_audit(store):
    with pytest.raises(RecordNotFoundError):
        audit_view(store, "nothing")


def test_losses_are_counted_by_source_where_documents_name_theirs(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def stage(name, kind, sources, deps=()):
        def body(config):
            folder = os.path.join(config["out"], "outputs", "main")
            os.makedirs(folder)
            pq.write_table(pa.table({"id": list(sources), "source": sources}), os.path.join(folder, "part-0.parquet"))
            return kind

        def build(ctx):
            return {"out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in deps]}

        return ArtifactStep(
            name, "2026.12.01", artifact_type=type(kind), run=body, build_config=build, deps=tuple(deps)
        )

    normal = stage("normal", NormalizedData(num_documents=5), ["web", "web", "web", "code", "code"])
    kept = ConsolidatedData(num_documents={"train": 3}, num_bytes={"train": 3}, num_dropped_duplicates=2)
    corpus = stage("corpus", kept, ["web", "code", "code"], [normal])
    assert run(corpus, prefix=str(tmp_path)).ok
    first, second = audit_view(Ledger(str(tmp_path)), "corpus", options=options()).losses
    assert first.by_source == {"web": {"documents": 3}, "code": {"documents": 2}}
    assert second.by_source == {"code": {"documents": 2, "lost": 0}, "web": {"documents": 1, "lost": 2}}


# ---- the page --------------------------------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='x",
    "{{ 7*7 }}",
    "</style>",
    "&amp;",
    "a\x00b",
]
texts = st.sampled_from(HOSTILE) | st.text(max_size=20)


def lists(inner):
    return st.lists(inner, max_size=2)


def lines(kind):
    """Instances of a view class with hostile text in every field."""
    plain = {
        "str": texts, "int": st.integers(0, 10**12), "float": st.floats(-1e9, 1e9), "bool": st.booleans(),
        "float | None": st.none() | st.floats(0, 1e6), "int | None": st.none() | st.integers(0, 10**9),
        "str | None": st.none() | texts, "Sequence[str]": lists(texts),
        "Sequence[str] | None": st.none() | lists(texts),
        "Mapping[str, Any]": st.dictionaries(texts, st.integers(), max_size=2),
        "Mapping[str, int]": st.dictionaries(texts, st.integers(0, 9), max_size=2),
        "Mapping[str, Mapping[str, int]]": st.dictionaries(
            texts, st.dictionaries(texts, st.integers(0, 9), max_size=1), max_size=1
        ),
    }  # fmt: skip
    return st.builds(kind, **{field.name: plain[field.type] for field in dataclasses.fields(kind)})


refusals = st.fixed_dictionaries({"rule": texts, "step": texts, "kind": texts, "reason": texts, "path": lists(texts)})
waivers = st.fixed_dictionaries(
    {"ref": texts, "rule": texts, "reason": texts, "by": texts, "expires": texts, "expired": st.booleans()}
)
policies = st.builds(
    PolicyLine, policy=texts, judged_for=texts, refusals=lists(refusals), waivers=lists(waivers), recorded=lists(texts)
)
views = st.builds(
    AuditView,
    step=texts, at=texts, deep=st.booleans(), ok=st.booleans(), problems=lists(texts), notes=lists(texts),
    lineage=st.lists(lines(LineageStep), max_size=3, unique_by=lambda step: step.step).map(
        lambda steps: [dataclasses.replace(step, inputs=[s.step for s in steps[:n]]) for n, step in enumerate(steps)]
    ),
    materials=lists(lines(MaterialLine)), licences=lists(texts), policy=policies,
    decontamination=lists(lines(DecontaminationLine)), losses=lists(lines(LossLine)), code=lists(lines(CodeState)),
    environment=st.dictionaries(texts, texts, max_size=2), cost=lines(Cost), attempts=lists(lines(AttemptLine)),
    metrics=lists(lines(MetricLine)), claims=lists(lines(ClaimLine)), reproduce=lists(texts),
)  # fmt: skip

TAGS = set(
    "html head meta title style body main h1 h2 h3 p section div span b ul li table tr th td code pre details summary "
    "br svg g rect text path".split()
)
ATTRIBUTES = set("lang charset name content class colspan style width height viewbox role x y rx d".split())


class Inspector(html.parser.HTMLParser):
    """Finds every element and attribute of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def filled(kind, text):
    """An instance of a view class whose every text is this one."""
    plain = {
        "str": text, "int": 1, "float": 1.0, "bool": True, "float | None": 1.0, "int | None": 1, "str | None": text,
        "Sequence[str]": [text], "Sequence[str] | None": [text], "Mapping[str, Any]": {text: 1},
        "Mapping[str, int]": {text: 1}, "Mapping[str, Mapping[str, int]]": {text: {text: 1}},
    }  # fmt: skip
    lists = {
        "lineage": LineageStep, "materials": MaterialLine, "decontamination": DecontaminationLine, "losses": LossLine,
        "code": CodeState, "attempts": AttemptLine, "metrics": MetricLine, "claims": ClaimLine,
    }  # fmt: skip
    values = {}
    for field in dataclasses.fields(kind):
        if kind is AuditView and field.name in lists:
            values[field.name] = [filled(lists[field.name], text)]
        elif field.name == "policy" and kind is AuditView:
            names = ("rule", "step", "kind", "reason", "ref", "by", "expires")
            row = {**dict.fromkeys(names, text), "path": [text], "expired": True}
            values["policy"] = PolicyLine(policy=text, judged_for=text, refusals=[row], waivers=[row], recorded=[text])
        elif field.name == "cost":
            values["cost"] = filled(Cost, text)
        elif field.name == "environment":
            values["environment"] = {text: text, "packages": {text: text}}
        else:
            # A step does not read itself.
            values[field.name] = [f"{text}."] if field.name == "inputs" else plain[field.type]
    return kind(**values)


@pytest.mark.parametrize("text", [*HOSTILE, "<iframe srcdoc='x'>", "javascript:alert(1)", "]]><b>", "\u202e<u>"])
def test_a_hostile_text_in_every_place_stays_a_text(text):
    inspector = Inspector()
    inspector.feed(render_audit_page(filled(AuditView, text)))
    assert inspector.tags <= TAGS and inspector.attributes <= ATTRIBUTES


@settings(max_examples=15)
@given(views)
def test_no_text_from_a_record_becomes_markup(view):
    page = render_audit_page(view)
    inspector = Inspector()
    inspector.feed(page)
    assert inspector.tags <= TAGS and inspector.attributes <= ATTRIBUTES
    jsonschema.validate(json.loads(json.dumps(view.to_json())), audit_schema())


def test_the_page_is_one_file_that_fetches_nothing(store, tmp_path):
    path = tmp_path / "audit.html"
    write_audit_page(audit_view(store, "model", options=options()), str(path))
    page = path.read_text()
    assert not re.search(r"(src|href)\s*=|url\(|@import|<script|<link", page)
    assert '<svg class="graph"' in page and "https://example.org/terms" in page
    for heading in ("Lineage", "Data bill of materials", "Licences and waivers", "Decontamination", "Metrics",
                    "What every stage handed on and lost", "Hypotheses", "Every attempt", "Code", "Environment",
                    "Reproduce"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page


def test_a_lineage_of_thousands_of_steps_is_drawn(store):
    view = audit_view(store, "model", options=options())
    steps = [
        LineageStep(step=f"s{n}@1", name=f"s{n}", version="1", kind="build", inputs=[f"s{n - 1}@1"] if n else [])
        for n in range(3_000)
    ]
    assert render_audit_page(dataclasses.replace(view, lineage=steps)).count('class="edge"') == 2_999
