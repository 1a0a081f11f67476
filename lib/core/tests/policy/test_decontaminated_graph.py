"""A policy that asks for decontamination, the graph that lacks it, and the graph that has it."""

import json
import random

import pyarrow.parquet as pq
import pytest
from marin.datakit.recipe import EvalFiles, SplitRule
from marin.datakit.sources import Source, SourceKind
from marin.errors import PlanRefusedError
from marin.execution import Artifact, ArtifactStep, read_record, run
from marin.experiment.data import (
    consolidated,
    contamination,
    documents,
    drop_sets,
    eval_index,
    near_duplicates,
    normalized,
)
from marin.policy import parse_policy, policy_gate

VERSION = "2026.12.01"
GATE = policy_gate(
    parse_policy(
        """format = 1
[kinds.train]
allow = ["MIT"]
protect_eval = true
require = { decon = ["exam@1"] }
""",
        path="policy.toml",
    )
)


class Model(Artifact):
    purpose = "train"


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", "0")
    rng = random.Random(0)

    def words(count):
        return " ".join(f"word{rng.randrange(2_000)}" for _ in range(count))

    item = words(30)
    leaks = [f"{words(40)}\n\n{item}" for _ in range(4)]
    web = write(tmp_path / "web.jsonl", [*(words(60) for _ in range(40)), *leaks])
    exam = Source(SourceKind.PATH, write(tmp_path / "exam.jsonl", [item]), licence="CC-BY-NC-4.0", eval_suite="exam@1")
    return tmp_path, Source(SourceKind.PATH, web, licence="MIT"), exam, item


def model(web, exam, *, clean, by_step=False):
    """A model on web text; clean or not."""
    normal = normalized("norm", documents("web", web, version=VERSION), num_shards=2, version=VERSION)
    duplicates = near_duplicates("dups", normal, num_shards=2, version=VERSION)
    marks = None
    if clean:
        suite = documents("exam", exam, version=VERSION) if by_step else EvalFiles(exam)
        index = eval_index("index", {"exam@1": suite}, version=VERSION)
        drops = drop_sets("drops", [normal], index, version=VERSION)
        marks = contamination("marks", normal, index, suites=["exam@1"], drops=drops, version=VERSION)
    split = SplitRule(validation_percent=20, test_percent=20)
    corpus = consolidated("corpus", normal, duplicates, contamination=marks, split=split, version=VERSION)
    return model_step(corpus)


def model_step(corpus):
    def config(ctx):
        return {"in": ctx.artifact_path(corpus)}

    def train(_config):
        return Model()

    return ArtifactStep("model", VERSION, artifact_type=Model, run=train, build_config=config, deps=(corpus,))


@pytest.mark.parametrize("by_step", [False, True], ids=["suite in files", "suite from a step"])
def test_the_plan_is_refused_without_decontamination_and_passes_with_it(places, by_step):
    tmp_path, web, exam, item = places
    store = str(tmp_path / "store")
    with pytest.raises(PlanRefusedError, match="was not decontaminated against exam@1") as refused:
        run(model(web, exam, clean=False), prefix=store, gate=GATE)
    assert [refusal.rule for refusal in refused.value.refusals] == ["decontamination"]
    summary = run(model(web, exam, clean=True, by_step=by_step), prefix=store, gate=GATE)
    assert summary.ok
    corpus = summary.outcome("corpus").path
    texts = [
        text
        for split in ("train", "validation", "test")
        for text in pq.read_table(f"{corpus}/outputs/{split}").column("text").to_pylist()
    ]
    assert len(texts) == 40 and not any(item in text for text in texts)
    record = read_record(corpus)
    assert record is not None and record.result is not None and record.result["num_dropped_contaminated"] == 4
    marks = read_record(summary.outcome("marks").path)
    assert marks is not None and '"decontaminates"' in marks.fingerprint_payload


def test_a_corpus_without_marks_has_no_field_of_them_in_its_recipe(places):
    tmp_path, web, exam, _ = places
    payloads = []
    for clean in (False, True):
        summary = run(model(web, exam, clean=clean), prefix=str(tmp_path / str(clean)))
        record = read_record(summary.outcome("corpus").path)
        assert record is not None
        payloads.append(record.fingerprint_payload)
    assert "contamination_path" not in payloads[0] and "CleanConsolidateConfig" not in payloads[0]
    assert "contamination_path" in payloads[1]
