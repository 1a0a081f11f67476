"""Outputs are taken over from other stores, checked byte by byte, and nothing that only they needed runs."""

import dataclasses
import os
import signal

import pytest
from marin.errors import CrossRegionError, RecordNotFoundError, ReplicaMismatchError
from marin.execution import Artifact, ArtifactStep, run
from marin.execution.boundaries import Boundary
from marin.execution.graph import plan_graph
from marin.execution.lazy import lower
from marin.execution.regions import region_conflicts
from marin.execution.replicate import find_original, replicate
from marin.execution.settings import RunnerSettings
from marin.ledger import Ledger
from marin.ledger.verification import verify
from rigging.data_config import DataConfig, use_data_config
from rigging.resources import ResourceConfig

VERSION = "2026.12.01"


class Words(Artifact):
    count: int = 0


class Bench:
    """A data step and a model step that reads it; counts what really ran."""

    def __init__(self):
        self.ran = []

    def body(self, config):
        self.ran.append(config["name"])
        os.makedirs(os.path.join(config["out"], "deep"))
        with open(os.path.join(config["out"], "deep", "words.txt"), "w") as file:
            file.write(config["name"] * config["n"])
        os.symlink("deep/words.txt", os.path.join(config["out"], "latest"))
        return Words(count=config["n"])

    def step(self, name, n, *deps, **options):
        return ArtifactStep(
            name, VERSION, artifact_type=Words, run=self.body, deps=deps,
            build_config=lambda ctx: {
                "name": name, "n": n, "out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in deps]
            },
            **options,
        )  # fmt: skip

    def model(self, n=3, **options):
        return self.step("model", n, self.step("data", 2), **options)


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def stores(tmp_path):
    return str(tmp_path / "there"), str(tmp_path / "here")


def test_a_mirrored_step_is_copied_and_its_inputs_do_not_run(bench, stores):
    there, here = stores
    run(bench.model(), prefix=there)
    bench.ran.clear()
    summary = run(bench.model(mirrored=True), prefix=here, mirrors=[there])
    assert bench.ran == [] and summary.ok
    original, copy = Ledger(there).record("model"), Ledger(here).record("model")
    assert copy.content_digest == original.content_digest and copy.deps == original.deps
    assert copy.replica_of == original.output_path and copy.provenance == original.provenance
    assert Words.load(f"{here}/model/{VERSION}").count == 3
    assert os.readlink(f"{here}/model/{VERSION}/latest") == "deep/words.txt"
    (attempt,) = Ledger(here).attempts("model")
    assert attempt.status == "success" and attempt.inputs[0]["path"] == original.output_path
    assert "replicated" in {event.kind for event in Ledger(here).events()}
    assert verify(Ledger(here), "model", deep=True).ok


def test_without_the_same_recipe_elsewhere_it_is_computed(bench, stores):
    there, here = stores
    run(bench.model(n=4), prefix=there)
    bench.ran.clear()
    assert run(bench.model(mirrored=True), prefix=here, mirrors=[there]).ok
    assert bench.ran == ["data", "model"]


def test_a_step_that_is_not_mirrored_is_computed_even_if_another_store_has_it(bench, stores):
    there, here = stores
    run(bench.model(), prefix=there)
    bench.ran.clear()
    run(bench.model(), prefix=here, mirrors=[there])
    assert bench.ran == ["data", "model"]


def test_a_damaged_original_is_never_committed(bench, stores):
    there, here = stores
    run(bench.model(), prefix=there)
    with open(f"{there}/model/{VERSION}/deep/words.txt", "w") as file:
        file.write("wormsmodel")
    with pytest.raises(ReplicaMismatchError, match="changed content: deep/words"):
        replicate(f"model/{VERSION}", here, [there])
    (attempt,) = Ledger(here).attempts("model")
    assert (attempt.status, attempt.category) == ("failed", "data")
    assert not os.path.exists(f"{here}/model/{VERSION}")


def test_a_copy_that_is_there_is_left_alone_and_one_that_is_nowhere_is_an_error(bench, stores):
    there, here = stores
    run(bench.model(), prefix=there)
    assert replicate(f"model/{VERSION}", here, [there]) is not None
    assert replicate(f"model/{VERSION}", here, [there]) is None
    with pytest.raises(RecordNotFoundError, match="no complete output"):
        replicate("nothing/dev", here, [there])


class Died(BaseException):
    pass


@pytest.mark.parametrize("boundary", [Boundary.STAGING_CREATED, Boundary.RECORD_WRITTEN, Boundary.OUTPUT_RENAMED])
def test_a_copy_that_was_cut_short_is_completed_by_the_next(bench, stores, boundary):
    there, here = stores
    run(bench.model(), prefix=there)
    pid = os.fork()
    if pid == 0:

        def die(passed, step):
            if passed is boundary:
                os.kill(os.getpid(), signal.SIGKILL)

        replicate(f"model/{VERSION}", here, [there], settings=RunnerSettings(hook=die))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    replicate(f"model/{VERSION}", here, [there])
    assert Ledger(here).record("model").content_digest == Ledger(there).record("model").content_digest
    assert find_original(f"model/{VERSION}", [here]) is not None
    assert all(attempt.closed for attempt in Ledger(here).attempts("model"))


def test_mirrored_data_is_copied_once_and_its_name_is_the_recipe(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "raw").mkdir(parents=True)
    (there / "raw" / "books.txt").write_text("words")
    seen = []

    def step(budget_gb):
        return ArtifactStep(
            "count", VERSION, run=seen.append,
            build_config=lambda ctx: {"books": ctx.mirrored("raw/books.txt", budget_gb=budget_gb)},
        )  # fmt: skip

    with use_data_config(DataConfig(region_buckets={"us-central2": str(there)})):
        assert run(step(1.0), prefix=str(here)).ok
    assert seen == [{"books": str(here / "raw" / "books.txt")}]
    assert "mirror://raw/books.txt" in step(None).fingerprint_payload()
    assert (here / "raw" / "books.txt").read_text() == "words"


@pytest.fixture
def far_away(monkeypatch):
    monkeypatch.setenv("MARIN_REGION", "us-east1")


def pinned(path):
    return ArtifactStep("data", VERSION, override_path=path)


def test_a_step_that_would_read_another_region_is_refused_before_it_runs(bench, stores, far_away):
    _, here = stores
    step = bench.step("model", 1, pinned("gs://example-europe-west4/data"))
    with pytest.raises(CrossRegionError, match=r"model@2026.12.01 runs in us-east1 .*lies in europe-west4") as caught:
        run(step, prefix=here)
    assert bench.ran == [] and [conflict.region for conflict in caught.value.conflicts] == ["europe-west4"]


def test_a_served_step_is_not_guarded(bench, stores, far_away, monkeypatch):
    _, here = stores
    monkeypatch.delenv("MARIN_REGION")
    run(bench.step("model", 1), prefix=here)
    monkeypatch.setenv("MARIN_REGION", "us-east1")
    assert run(bench.step("model", 1), prefix=here).ok


def test_the_regions_that_a_step_asks_for_count_and_not_where_the_driver_is(bench, stores, far_away):
    spec = lower(bench.step("model", 1, pinned("gs://example-europe-west4/data")))
    spec = dataclasses.replace(spec, resources=ResourceConfig(regions=["europe-west4"]))
    graph = plan_graph([spec], "gs://example-europe-west4/store")
    assert region_conflicts(graph, [spec]) == []
    other = dataclasses.replace(spec, resources=ResourceConfig(regions=["us-west4"]))
    graph = plan_graph([other], "gs://example-europe-west4/store")
    assert {conflict.wanted for conflict in region_conflicts(graph, [other])} == {("us-west4",)}


def test_a_reason_lets_data_cross_and_stays_in_the_ledger(bench, stores, far_away):
    _, here = stores
    reading = bench.step("model", 1, pinned("memory://example-europe-west4/data"))
    run(reading, prefix=here, allow_cross_region="one-off audit, 3 GB")
    (waiver,) = [event for event in Ledger(here).events() if event.kind == "waiver"]
    assert waiver.data["rule"] == "region" and waiver.data["reason"] == "one-off audit, 3 GB"
    assert waiver.data["conflicts"][0]["path"] == "memory://example-europe-west4/data"
