import contextvars
import errno
import itertools
import json
import logging
import os
import random
import shutil
import signal
import threading
import time

import pytest
from marin.errors import (
    ArtifactTypeMismatchError,
    FingerprintMismatchError,
    StepCollisionError,
    StepCycleError,
    StepFailedError,
    UnknownStepError,
)
from marin.execution import (
    Artifact,
    ArtifactStep,
    FailureCategory,
    RetryPolicy,
    StepSpec,
    explain,
    resolve,
    run,
    step_attempt,
)
from marin.execution.boundaries import Boundary
from marin.execution.layout import StepLayout
from marin.execution.lazy import lower_all
from marin.execution.records import read_record
from marin.execution.reporter import QuietReporter
from marin.execution.settings import RunnerSettings
from marin.ledger import Ledger
from rigging.filesystem.lease import Lease


class Number(Artifact):
    value: int


class Lab:
    """Builds steps whose bodies are counted."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.ran = []

    def step(self, name, *deps, literal=1, version="auto", body=None, **fields):
        def default(config):
            with open(os.path.join(config["out"], "data.json"), "w") as file:
                json.dump([config["literal"], [Number.load(path).value for path in config["in"]]], file)
            return Number(value=config["literal"] + sum(Number.load(path).value for path in config["in"]))

        def counted(config):
            self.ran.append(name)
            return (body or default)(config)

        return ArtifactStep(
            name=name,
            version=version,
            artifact_type=Number,
            run=counted,
            build_config=lambda ctx: {
                "literal": literal,
                "out": ctx.output_path,
                "in": [ctx.artifact_path(dep) for dep in deps],
            },
            deps=deps,
            **fields,
        )

    def run(self, *handles, **options):
        self.ran.clear()
        return run(*handles, prefix=self.prefix, **options)

    def outcomes(self, summary):
        return {step.name: step.outcome.value for step in summary.steps}


@pytest.fixture
def lab(tmp_path):
    return Lab(str(tmp_path / "store"))


def test_a_graph_runs_in_order_each_step_once_and_then_never_again(lab):
    a = lab.step("a")
    b, c = lab.step("b", a, literal=2), lab.step("c", a, literal=3)
    d = lab.step("d", b, c, literal=4)
    summary = lab.run(d)
    assert sorted(lab.ran) == ["a", "b", "c", "d"] and lab.ran[0] == "a" and lab.ran[-1] == "d"
    assert summary.ok and summary.artifact(d).value == 11
    stamps = {step.name: os.stat(os.path.join(step.path, ".artifact.json")).st_mtime_ns for step in summary.steps}
    again = lab.run(d)
    assert lab.ran == [] and set(lab.outcomes(again).values()) == {"cached"}
    assert {s.name: os.stat(os.path.join(s.path, ".artifact.json")).st_mtime_ns for s in again.steps} == stamps


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_the_order_of_the_handles_does_not_matter(lab, order):
    a = lab.step("a")
    steps = [a, lab.step("b", a), lab.step("c", a)]
    steps.append(lab.step("d", *steps[1:]))
    lab.run(*(steps[i] for i in order), max_concurrent=1)
    assert sorted(lab.ran) == ["a", "b", "c", "d"]


def test_a_changed_literal_reruns_what_depends_on_it_and_says_why(lab):
    def graph(literal):
        a, b = lab.step("a"), lab.step("b", literal=literal)
        return lab.step("d", lab.step("c", b), a)

    lab.run(graph(1))
    summary = lab.run(graph(2))
    assert sorted(lab.ran) == ["b", "c", "d"] and lab.outcomes(summary)["a"] == "cached"
    reason = summary.outcome("b").reasons[0]
    assert reason.kind == "recipe_changed" and reason.fields == ("literal: 1 -> 2",)
    lab.run(graph(1))
    assert lab.ran == []


def test_a_changed_recipe_under_a_fixed_version_is_told_once_and_the_old_bytes_are_served(lab):
    notices = []

    class Reporter:
        def __getattr__(self, name):
            return lambda *args: notices.append((name, args)) if name == "notice" else None

    old = lab.run(lab.step("a", literal=1, version="2026.12.01"))
    digest = old.outcome("a").content_digest
    summary = lab.run(lab.step("a", literal=2, version="2026.12.01"), reporter=Reporter())
    assert lab.ran == [] and summary.ok
    assert summary.outcome("a").content_digest == digest
    assert summary.outcome("a").reasons[0].fields == ("literal: 1 -> 2",)
    assert len(notices) == 1 and "literal: 1 -> 2" in notices[0][1][1]


def test_a_pinned_fingerprint_refuses_to_serve_another_recipe(lab):
    lab.run(lab.step("a", literal=1, version="2026.12.01"))
    changed = lab.step("a", literal=2, version="2026.12.01")
    pinned = lab.step("a", literal=2, version="2026.12.01", expected_fingerprint=changed.fingerprint())
    with pytest.raises(FingerprintMismatchError, match="literal: 1 -> 2"):
        lab.run(pinned)


def test_mutable_versions_are_rebuilt_with_what_depends_on_them(lab):
    a = lab.step("a", version="dev")
    b = lab.step("b", a, version="dev")
    fixed = lab.step("c")
    for _ in range(2):
        lab.run(b, fixed)
        assert [name for name in lab.ran if name != "c"] == ["a", "b"]
    assert "c" not in lab.ran


def test_forcing_a_step_rebuilds_it_and_dependents_only_when_its_bytes_changed(lab):
    counter = itertools.count()

    def stable(config):
        return Number(value=5)

    def moving(config):
        with open(os.path.join(config["out"], "n.txt"), "w") as file:
            file.write(str(next(counter)))
        return Number(value=5)

    for body, expected in ((stable, ["a"]), (moving, ["a", "b"])):
        a = lab.step("a", body=body, literal=body.__name__ and len(body.__name__))
        c = lab.step("c", lab.step("b", a))
        lab.run(c)
        lab.run(c, force=["a"])
        # b read other bytes and made the same ones again, so c is still right.
        assert lab.ran == expected


def test_an_unknown_forced_step_is_refused(lab):
    with pytest.raises(UnknownStepError, match="steps: a"):
        lab.run(lab.step("a"), force=["b"])


@pytest.mark.parametrize("seed", range(8))
def test_exactly_the_least_set_of_steps_runs_for_random_graphs_and_caches(lab, seed):
    chance = random.Random(seed)
    steps = []
    for number in range(14):
        deps = chance.sample(steps, min(len(steps), chance.randint(0, 3)))
        steps.append(lab.step(f"s{number}", *deps, literal=number))
    cached = set()
    for chosen in chance.sample(steps, 3):
        lab.run(chosen)
        cached |= {chosen, *walk(chosen)}
    for gone in chance.sample(sorted(cached, key=lambda step: step.name), min(3, len(cached))):
        remove(lab.prefix, gone)
        cached.discard(gone)
    terminals = chance.sample(steps, 3)
    expected, stack = set(), list(terminals)
    while stack:
        step = stack.pop()
        if step not in cached and step not in expected:
            expected.add(step)
            stack.extend(step.deps)
    lab.run(*terminals)
    assert sorted(lab.ran) == sorted(step.name for step in expected)


def walk(step):
    for dep in step.deps:
        yield dep
        yield from walk(dep)


def remove(prefix, step):
    import shutil

    shutil.rmtree(step.path(prefix))


def test_a_failure_leaves_independent_branches_alone_and_is_recorded(lab):
    def bad(config):
        logging.getLogger("lab").warning("about to fail with token=%s", "sk-" + "a1B2c3D4e5F6g7H8i9J0k1L2")
        os.makedirs(os.path.join(config["out"], "logs"))
        with open(os.path.join(config["out"], "logs", "curve.jsonl"), "w") as file:
            file.write('{"loss": 9}\n')
        raise ValueError("no luck")

    broken = lab.step("broken", body=bad)
    after, free = lab.step("after", broken), lab.step("free")
    summary = lab.run(lab.step("end", after), free)
    assert lab.outcomes(summary) == {"broken": "failed", "after": "dep_failed", "end": "dep_failed", "free": "executed"}
    assert not summary.ok and summary.outcome("end").reasons[0].fields == (broken.label,)
    with pytest.raises(StepFailedError) as caught:
        summary.artifact(broken)
    assert isinstance(caught.value.__cause__, ValueError)
    ledger = Ledger(lab.prefix)
    attempt = ledger.attempts("broken")[0]
    assert (attempt.status, attempt.category, attempt.error["type"]) == ("failed", "user_code", "builtins.ValueError")
    assert "no luck" in attempt.error["traceback"] and "about to fail" in attempt.log_tail
    assert "sk-a1B2" not in attempt.log_tail
    assert attempt.partial_outputs == [{"path": "logs/curve.jsonl", "bytes": 12}]
    kept = os.path.join(os.path.dirname(ledger.find("broken").layout.attempts), attempt.evidence, "logs", "curve.jsonl")
    assert os.path.getsize(kept) == 12
    assert not os.path.exists(broken.path(lab.prefix))
    assert ledger.find("after").status.causes == [broken.label]


def test_a_failed_step_is_tried_again_and_its_dependents_recover(lab):
    healthy = []

    def sick(config):
        if not healthy:
            raise ValueError("not yet")
        return Number(value=1)

    end = lab.step("end", lab.step("sick", body=sick))
    assert not lab.run(end).ok
    assert lab.outcomes(lab.run(end, retry_failed=False)) == {"sick": "failed", "end": "dep_failed"} and lab.ran == []
    healthy.append(True)
    assert lab.run(end).ok
    assert [attempt.status for attempt in Ledger(lab.prefix).attempts("sick")] == ["failed", "success"]
    assert Ledger(lab.prefix).find("end").state == "success"


def test_a_diverged_step_is_a_known_failure_until_forced_or_changed(lab):
    class Diverged(RuntimeError):
        failure_category = "diverged"

    def diverge(config):
        raise Diverged("loss is nan")

    arm, good = lab.step("arm", body=diverge), lab.step("good")
    assert not lab.run(arm, good).ok
    summary = lab.run(arm, good, allow_failed=["arm"])
    assert lab.ran == [] and summary.ok
    assert lab.outcomes(summary) == {"arm": "known_failure", "good": "cached"}
    lab.run(arm, force=["arm"])
    assert lab.ran == ["arm"]
    lab.run(lab.step("arm", body=diverge, literal=2))
    assert lab.ran == ["arm"]


def test_a_known_failure_that_another_driver_found_meanwhile_is_not_run_again(lab, tmp_path):
    class Diverged(RuntimeError):
        failure_category = "diverged"

    def diverge(config):
        raise Diverged("loss is nan")

    other = Lab(str(tmp_path / "other"))
    other.run(other.step("arm", body=diverge))
    arm = lab.step("arm", body=diverge)

    def meanwhile(boundary, label):
        if boundary is Boundary.LEASE_ACQUIRED:
            shutil.copyfile(StepLayout(arm.path(other.prefix)).status, StepLayout(arm.path(lab.prefix)).status)

    summary = lab.run(arm, settings=RunnerSettings(hook=meanwhile))
    assert lab.ran == [] and lab.outcomes(summary) == {"arm": "known_failure"}
    assert summary.outcome("arm").category == "diverged"
    lab.run(arm, settings=RunnerSettings(hook=meanwhile), force=["arm"])
    assert lab.ran == ["arm"]


def test_an_allowed_failure_also_allows_what_depends_on_it(lab):
    def bad(config):
        raise ValueError

    summary = lab.run(lab.step("end", lab.step("arm", body=bad)), allow_failed=["arm"])
    assert summary.ok and lab.outcomes(summary) == {"arm": "failed", "end": "dep_failed"}


def test_fail_fast_starts_nothing_more(lab):
    def bad(config):
        raise ValueError

    summary = lab.run(lab.step("bad", body=bad), lab.step("later"), max_concurrent=1, keep_going=False)
    assert lab.outcomes(summary) == {"bad": "failed", "later": "not_run"}


def test_a_transient_failure_is_retried_under_the_same_lease(lab):
    class Taken(RuntimeError):
        failure_category = "preempted"

    def flaky(config):
        if step_attempt().retry == 0:
            raise Taken("machine went away")
        return Number(value=1)

    assert lab.run(lab.step("a", body=flaky)).ok
    first, second = Ledger(lab.prefix).attempts("a")
    assert (first.category, second.status, second.retry_of) == ("preempted", "success", first.attempt)
    assert first.epoch == second.epoch


def test_retries_end(lab):
    def bad(config):
        raise MemoryError

    lab.run(lab.step("a", body=bad, retry=RetryPolicy({FailureCategory.OOM: 2})))
    assert lab.ran == ["a"] * 3


def test_scratch_survives_a_failure_of_the_same_recipe_and_goes_after_success(lab):
    def resumable(config):
        scratch = step_attempt().scratch_path
        marker = os.path.join(scratch, "checkpoint")
        if not os.path.exists(marker):
            open(marker, "w").close()
            raise ValueError("died after a checkpoint")
        return Number(value=1)

    step = lab.step("a", body=resumable)
    assert not lab.run(step).ok
    assert lab.run(step).ok
    assert not os.path.exists(os.path.join(Ledger(lab.prefix).find("a").layout.control, "scratch"))


def test_scratch_of_another_recipe_is_not_seen(lab):
    def leave(config):
        scratch = step_attempt().scratch_path
        seen.append(os.listdir(scratch))
        open(os.path.join(scratch, "checkpoint"), "w").close()
        raise ValueError

    seen = []
    for literal in (1, 2):
        lab.run(lab.step("a", body=leave, literal=literal, version="2026.12.01"))
    assert seen == [[], []]


def test_a_step_over_its_time_limit_is_stopped(lab):
    def slow(config):
        while True:
            time.sleep(0.01)

    begun = time.monotonic()
    summary = lab.run(lab.step("a", body=slow, timeout_s=0.2))
    assert summary.outcome("a").category == "timeout" and time.monotonic() - begun < 5


def test_a_polite_body_sees_its_cancel_token(lab):
    seen = []

    def polite(config):
        seen.append(step_attempt().cancel.wait(10))
        return Number(value=1)

    assert lab.run(lab.step("a", body=polite, timeout_s=0.1)).outcome("a").category == "timeout"
    assert seen == [True]


def test_no_more_steps_run_at_once_than_allowed(lab):
    lock, now, most = threading.Lock(), [0], [0]

    def busy(config):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return Number(value=1)

    lab.run(*(lab.step(f"s{i}", body=busy) for i in range(6)), max_concurrent=3)
    assert most == [3]


@pytest.mark.parametrize("count", [0, -1])
def test_a_concurrency_below_one_is_refused(lab, count):
    with pytest.raises(ValueError, match="max_concurrent"):
        lab.run(lab.step("a"), max_concurrent=count)


def test_context_variables_reach_the_bodies(lab):
    variable = contextvars.ContextVar("variable", default="unset")

    def read(config):
        seen.append(variable.get())
        return Number(value=1)

    seen = []
    variable.set("set")
    lab.run(lab.step("a", body=read))
    assert seen == ["set"]


def test_a_result_of_another_type_fails_the_step(lab):
    summary = lab.run(lab.step("a", body=lambda config: Artifact()))
    assert isinstance(summary.outcome("a").error, ArtifactTypeMismatchError)


def test_a_vanished_output_is_rebuilt_together_with_missing_inputs(lab):
    a = lab.step("a")
    b = lab.step("b", a)
    lab.run(b)
    remove(lab.prefix, a)
    remove(lab.prefix, b)
    summary = lab.run(b)
    assert lab.ran == ["a", "b"] and summary.outcome("b").reasons[0].kind == "vanished"


def test_two_recipes_at_one_address_and_nested_outputs_are_refused(lab):
    with pytest.raises(StepCollisionError, match="two different recipes"):
        lab.run(lab.step("a", version="2026.12.01"), lab.step("a", literal=2, version="2026.12.01"))
    with pytest.raises(StepCollisionError, match="inside"):
        lab.run(lab.step("a", version="dev"), lab.step("a/dev", version="dev"))
    assert not os.path.exists(lab.prefix)


def test_two_handles_with_one_recipe_are_one_step(lab):
    summary = lab.run(lab.step("end", lab.step("a")), lab.step("a"))
    assert sorted(lab.ran) == ["a", "end"] and summary.ok


def test_a_circle_of_hand_written_specs_is_refused(lab):
    one = StepSpec(name="one", fn=lambda path: None, deps=[])
    two = StepSpec(name="two", fn=lambda path: None, deps=[one])
    one.deps.append(two)
    with pytest.raises(StepCycleError):
        lab.run(one)


def test_a_hand_written_spec_runs_with_its_output_path(lab):
    def write(path):
        with open(os.path.join(path, "x"), "w") as file:
            file.write("1")

    spec = StepSpec(name="raw/web", fn=write, hash_attrs={"v": 1})
    summary = lab.run(spec)
    path = summary.outcome("raw/web").path
    assert os.path.basename(path) == f"web_{spec.hash_id}" and os.path.exists(os.path.join(path, "x"))
    assert lab.run(spec).outcome("raw/web").outcome == "cached"


def test_a_pin_is_served_without_a_record_and_must_exist(lab, tmp_path):
    (tmp_path / "data").mkdir()
    pin = ArtifactStep(name="raw", version="2026.12.01", override_path=str(tmp_path / "data"))
    assert lab.run(pin).artifact(pin).path == str(tmp_path / "data")
    assert not os.path.exists(lab.prefix)
    missing = ArtifactStep(name="raw", version="2026.12.01", override_path=str(tmp_path / "gone"))
    assert lab.run(missing).outcome("raw").category == "data"


def test_adopted_data_gets_a_record_that_names_its_source(lab, tmp_path):
    (tmp_path / "data").mkdir()
    step = ArtifactStep.adopt("raw", "2026.12.01", str(tmp_path / "data"), config={"licence": "CC0-1.0"})
    assert lab.run(step).ok
    record = read_record(os.path.join(lab.prefix, "raw", "2026.12.01"))
    assert record.source == record.output_path == str(tmp_path / "data")
    assert '"licence":"CC0-1.0"' in record.fingerprint_payload
    gone = ArtifactStep.adopt("gone", "2026.12.01", str(tmp_path / "nothing"))
    assert lab.run(gone).outcome("gone").category == "data"


def test_data_without_a_record_in_the_way_is_put_aside_and_not_lost(lab):
    step = lab.step("a", version="2026.12.01")
    os.makedirs(step.path(lab.prefix))
    with open(os.path.join(step.path(lab.prefix), "precious.txt"), "w") as file:
        file.write("mine")
    assert lab.run(step).ok
    aside = os.path.join(Ledger(lab.prefix).find("a").layout.control, "displaced-1", "precious.txt")
    with open(aside) as file:
        assert file.read() == "mine"


def test_explaining_writes_nothing_and_agrees_with_what_runs(lab):
    b = lab.step("b", lab.step("a"))
    plan = explain(b, prefix=lab.prefix)
    assert lab.outcomes(plan) == {"a": "not_run", "b": "not_run"} and not os.path.exists(lab.prefix)
    lab.run(b)
    assert lab.outcomes(explain(b, prefix=lab.prefix)) == {"a": "cached", "b": "cached"}


def test_the_record_holds_what_was_read_and_what_was_used(lab):
    a = lab.step("a")
    b = lab.step("b", a)
    summary = lab.run(b)
    record = read_record(summary.outcome("b").path)
    assert record.record_format == 2 and record.deps == [a.label]
    assert record.dep_digests == [summary.outcome("a").content_digest]
    assert record.config["out"] == summary.outcome("b").path
    assert record.result == {"value": 2} and record.fingerprint == b.fingerprint()
    assert record.fingerprint_payload == b.fingerprint_payload()
    used = record.resources["used"]
    assert used["ram_peak"] > 1_000_000 and used["cpu_s"] >= 0
    assert record.code_digest and record.environment["python"] and record.environment["packages"]
    assert record.attempt == Ledger(lab.prefix).attempts("b")[0].attempt
    assert {"tree_hash", "base_commit", "dirty", "command_line"} <= record.provenance.keys()


def test_equal_runs_have_equal_digests_in_two_stores(tmp_path):
    found = []
    for number in range(2):
        lab = Lab(str(tmp_path / f"store{number}"))
        summary = lab.run(lab.step("b", lab.step("a")))
        found.append([step.content_digest for step in summary.steps])
    assert found[0] == found[1]


def test_events_tell_the_story_in_order(lab):
    lab.run(lab.step("b", lab.step("a")))
    events = [(event.kind, event.step) for event in Ledger(lab.prefix).events()]
    assert events == [("started", "a"), ("finished", "a"), ("started", "b"), ("finished", "b")]


def test_resolve_returns_the_artifact_or_raises_with_the_cause(lab):
    assert resolve(lab.step("a", literal=7), prefix=lab.prefix).value == 7

    def bad(config):
        raise KeyError("gone")

    with pytest.raises(StepFailedError) as caught:
        resolve(lab.step("b", body=bad), prefix=lab.prefix)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_interrupt_is_recorded_and_the_next_run_goes_on(lab):
    def wait_for_interrupt(config):
        os.kill(os.getpid(), signal.SIGINT)
        step_attempt().cancel.wait(10)
        raise RuntimeError("stopped")

    # Workers of pytest-xdist ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lab.run(lab.step("a", body=wait_for_interrupt, version="2026.12.01"))
    finally:
        signal.signal(signal.SIGINT, before)
    attempt = Ledger(lab.prefix).attempts("a")[0]
    assert (attempt.status, attempt.category) == ("interrupted", "interrupted")
    assert Ledger(lab.prefix).find("a").status.interrupted
    assert lab.run(lab.step("a", version="2026.12.01")).ok


def test_a_run_of_a_finished_graph_reads_each_status_at_most_twice(lab, monkeypatch):
    steps = [lab.step("s0")]
    for number in range(1, 12):
        steps.append(lab.step(f"s{number}", steps[-1]))
    lab.run(*steps)
    opened = count_opens(monkeypatch)
    lab.run(*steps)
    statuses = [path for path in opened if path.endswith(".executor_status")]
    assert 0 < len(statuses) <= 2 * len(steps)


def count_opens(monkeypatch):
    import builtins

    opened, real = [], builtins.open

    def spy(file, *args, **kwargs):
        opened.append(str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", spy)
    return opened


def test_lowered_graphs_can_be_run_twice_from_the_same_handles(lab):
    b = lab.step("b", lab.step("a"))
    assert len(lower_all([b])) == 2 and lab.run(b).ok and lab.run(b).ok


def test_a_step_that_another_driver_works_on_is_waited_for_and_the_user_told_for_whom(lab):
    step = lab.step("a", version="2026.12.01")
    layout = StepLayout(step.path(lab.prefix))
    os.makedirs(layout.control)
    other = Lease(layout.lease)
    assert other.try_acquire() == 1
    told = []

    class Reporter(QuietReporter):
        def step_waiting(self, step, holder):
            told.append((step, holder))
            other.release()

    assert lab.run(step, reporter=Reporter()).outcome("a").outcome == "executed"
    assert len(told) == 1 and told[0][0] == step.label and str(os.getpid()) in told[0][1]


@pytest.mark.parametrize("boundary", [Boundary.ATTEMPT_CLOSED, Boundary.SCRATCH_REMOVED, Boundary.EVENT_WRITTEN])
def test_a_commit_stays_a_commit_when_its_last_words_cannot_be_written(lab, boundary):
    def full(at, step):
        if at is boundary:
            raise OSError(errno.ENOSPC, "no space left")

    step = lab.step("a")
    assert lab.run(step, settings=RunnerSettings(hook=full)).outcome("a").outcome == "executed"
    assert lab.run(step).outcome("a").outcome == "cached"
    assert [attempt.status for attempt in Ledger(lab.prefix).attempts("a")] == ["success"]


def test_a_lost_end_of_a_success_is_written_by_the_next_run_that_serves_it(lab):
    step = lab.step("a")
    attempt = lab.run(step).outcome("a").attempt
    layout = Ledger(lab.prefix).find("a").layout
    os.unlink(os.path.join(layout.attempts, f"{attempt}.json"))
    lab.run(step)
    assert os.path.exists(os.path.join(layout.attempts, f"{attempt}.json"))
