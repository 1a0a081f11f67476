"""The coordinator under every schedule: losses, errors, late and duplicate work, and copies of stragglers."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zephyr import Dataset, compute_plan
from zephyr._shuffle.format import Part, Run
from zephyr._task import BlockRef, TaskError, TaskReport, TaskSpec
from zephyr.coordinator import (
    Accept,
    Assign,
    Coordinator,
    Discard,
    Finished,
    GiveUp,
    Instruction,
    Kill,
    Policy,
    Release,
    StageStarted,
    TaskFailed,
    TaskSucceeded,
    Tick,
    WorkerBeat,
    WorkerJoined,
    WorkerLost,
)
from zephyr.errors import IllegalTransitionError
from zephyr.physical import Plan

ERROR = TaskError("ValueError: x", "trace", None, retryable=True)


def three_stages(num: int = 4) -> Plan:
    ds = Dataset.from_list(list(range(num))).group_by(lambda x: x, reducer=lambda k, it: k, num_output_shards=3).count()
    return compute_plan(ds.pipeline)


def report_of(spec: TaskSpec) -> TaskReport:
    """Names the attempt in everything, so that a reader of a loser's data would show."""
    run = Run(f"{spec.label}", tuple(Part(at, at, 1, 8) for at in range(3)))
    return TaskReport(blocks=(BlockRef(1, 8, data=spec.label.encode()),), runs=(run,))


class Simulation:
    """Feeds a coordinator; checks what must hold after every step (safety)."""

    def __init__(self, plan: Plan, policy: Policy = Policy()) -> None:
        self.machine = Coordinator(plan, "x", policy)
        self.plan = plan
        self.now = 0.0
        self.running: dict[str, TaskSpec] = {}
        self.accepted: dict[tuple[int, int], TaskSpec] = {}
        self.attempts: set[str] = set()
        self.discarded: set[str] = set()
        self.end: Instruction | None = None
        self.apply(self.machine.start(0.0))

    def handle(self, event: Any) -> None:
        self.apply(self.machine.handle(event, self.now))

    def apply(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Assign(worker, spec):
                    assert worker not in self.running, "a worker has one task"
                    assert spec.label not in self.attempts, "attempt numbers are not reused"
                    assert (spec.stage, spec.shard) not in self.accepted, "no work for finished tasks"
                    self.check_inputs(spec)
                    self.attempts.add(spec.label)
                    self.running[worker] = spec
                case Accept(spec, report):
                    assert (spec.stage, spec.shard) not in self.accepted, "accepted once"
                    assert report.runs[0].path == spec.label
                    self.accepted[spec.stage, spec.shard] = spec
                case Discard(spec):
                    assert self.accepted.get((spec.stage, spec.shard)) != spec, "winners are never discarded"
                    self.discarded.add(spec.label)
                case StageStarted(stage, _):
                    done = {key for key in self.accepted if key[0] < stage}
                    assert len(done) == sum(s.num_tasks for s in self.plan.stages[:stage]), "stages do not overlap"
                case Finished() | GiveUp():
                    assert self.end is None
                    self.end = step

    def check_inputs(self, spec: TaskSpec) -> None:
        winners = {winner.label for (stage, _), winner in self.accepted.items() if stage == spec.stage - 1}
        for piece in spec.inputs:
            name = piece.data.decode() if isinstance(piece, BlockRef) and piece.data else getattr(piece, "path", "")
            assert name in winners, "inputs come from accepted attempts only"
        if spec.stage:
            assert len(spec.inputs) == len(winners)

    def finish(self, worker: str) -> None:
        spec = self.running.pop(worker)
        self.handle(TaskSucceeded(worker, spec, report_of(spec)))

    def fail(self, worker: str) -> None:
        spec = self.running.pop(worker)
        self.handle(TaskFailed(worker, spec, ERROR))

    def lose(self, worker: str) -> None:
        self.running.pop(worker, None)
        self.handle(WorkerLost(worker, "killed"))


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
def test_every_schedule_of_losses_and_errors_ends_right(seed: int, workers: int, tasks: int) -> None:
    rng = random.Random(seed)
    sim = Simulation(three_stages(tasks), Policy(max_task_errors=50, max_worker_losses=50, speculate_min_s=2.0))
    alive: set[str] = set()
    names = iter(f"w{i}" for i in range(10_000))
    for step in range(5000):
        if sim.end is not None:
            break
        sim.now += rng.random() * 3
        while len(alive) < workers:
            worker = next(names)
            alive.add(worker)
            sim.handle(WorkerJoined(worker))
        busy = sorted(sim.running)
        action = rng.random()
        if action < 0.15 and step < 100:
            worker = rng.choice(sorted(alive))
            alive.discard(worker)
            sim.lose(worker)
        elif action < 0.25 and busy and step < 100:
            sim.fail(rng.choice(busy))
        elif action < 0.35 or not busy:
            sim.handle(Tick())
        else:
            sim.finish(rng.choice(busy))
    # Liveness: faults stop after 100 steps, so it must end; safety was checked on the way.
    assert isinstance(sim.end, Finished)
    assert len(sim.accepted) == sum(stage.num_tasks for stage in sim.plan.stages)
    winners = {spec.label for spec in sim.accepted.values()}
    left = {spec.label for spec in sim.machine.running_attempts}
    assert sim.attempts == winners | sim.discarded | left, "every attempt is won, discarded, or left to be abandoned"


def joined(*workers: str, tasks: int = 4, policy: Policy = Policy()) -> Simulation:
    sim = Simulation(three_stages(tasks), policy)
    for worker in workers:
        sim.handle(WorkerJoined(worker))
    return sim


def test_three_errors_of_one_task_give_up() -> None:
    sim = joined("a", tasks=1)
    for _ in range(3):
        assert sim.end is None
        sim.fail("a")
    assert isinstance(sim.end, GiveUp)
    assert (sim.end.count, sim.end.error) == (3, ERROR)


def test_errors_of_the_data_are_not_retried() -> None:
    sim = joined("a", tasks=1)
    spec = sim.running.pop("a")
    sim.handle(TaskFailed("a", spec, TaskError("BadRecordError", "", None, retryable=False)))
    assert isinstance(sim.end, GiveUp)
    assert sim.end.count == 1


def test_lost_workers_do_not_count_as_errors_of_the_task() -> None:
    sim = joined("w0", tasks=1, policy=Policy(max_worker_losses=20))
    for at in range(19):
        sim.lose(f"w{at}")
        sim.handle(WorkerJoined(f"w{at + 1}"))
    assert sim.end is None
    sim.lose("w19")
    assert isinstance(sim.end, GiveUp)
    assert (sim.end.error, sim.end.count, sim.end.detail) == (None, 20, "killed")


def test_a_straggler_gets_one_copy_and_the_first_to_finish_wins() -> None:
    sim = joined("a", "b", tasks=2, policy=Policy(speculate_min_s=5.0))
    sim.now = 1.0
    slow = sim.running["b"]
    sim.finish("a")
    assert "a" not in sim.running
    sim.now = 4.0
    sim.handle(Tick())
    assert "a" not in sim.running
    sim.now = 7.0
    sim.handle(Tick())
    copy = sim.running["a"]
    assert (copy.shard, copy.attempt) == (slow.shard, slow.attempt + 1)
    sim.finish("a")
    assert sim.accepted[0, slow.shard] == copy
    sim.finish("b")
    assert slow.label in sim.discarded


def test_a_late_report_of_an_earlier_stage_is_discarded() -> None:
    sim = joined("a", "b", tasks=2, policy=Policy(speculate_min_s=0.0, speculate_factor=0.0))
    sim.now = 1.0
    slow = sim.running["b"]
    sim.finish("a")
    sim.now = 9.0
    sim.handle(Tick())
    sim.finish("a")
    assert sim.machine.stage == 1
    sim.finish("b")
    assert slow.label in sim.discarded
    assert (1, slow.shard) not in sim.accepted


def test_proven_tasks_are_not_run() -> None:
    plan = three_stages(2)
    report = report_of(TaskSpec("x", 2, 0, 0))
    machine = Coordinator(plan, "x", proven={(2, 0): report}, skipped_stages=frozenset({0, 1}))
    assert machine.start(0.0) == [StageStarted(2, 1), Finished((report,))]


def test_impossible_events_are_refused_with_the_story() -> None:
    sim = joined("a")
    with pytest.raises(IllegalTransitionError, match="already here") as caught:
        sim.handle(WorkerJoined("a"))
    assert caught.value.story == ("WorkerJoined(a)", "WorkerJoined(a)")
    with pytest.raises(IllegalTransitionError, match="not its assignment"):
        sim.handle(TaskSucceeded("b", sim.running["a"], TaskReport()))


def test_events_after_the_end_only_discard() -> None:
    sim = joined("a", "b", tasks=2)
    for _ in range(3):
        if sim.end is None:
            sim.fail("a")
    late = sim.running.pop("b")
    assert sim.machine.handle(TaskSucceeded("b", late, report_of(late)), 0.0) == [Discard(late)]


# Silence, overdue attempts, draining


def test_a_silent_worker_is_suspected_then_killed_and_its_late_report_discarded() -> None:
    sim = joined("a", "b", tasks=2, policy=Policy(heartbeat_timeout_s=100, suspect_after_s=10, speculate_min_s=1e9))
    hung = sim.running["b"]
    sim.handle(WorkerBeat("b", hung.label))
    sim.finish("a")
    sim.now = 9.0
    sim.handle(Tick())
    assert "a" not in sim.running, "not yet suspected"
    sim.now = 11.0
    sim.handle(Tick())
    copy = sim.running["a"]
    assert copy.shard == hung.shard
    sim.now = 101.0
    assert sim.machine.handle(Tick(), sim.now)[0] == Kill("b", hung, "gave no sign of life for 101 s")
    sim.finish("a")
    # It answers after all, just before it dies: its report is late, and it gets nothing more to do.
    sim.handle(TaskSucceeded("b", sim.running.pop("b"), report_of(hung)))
    assert hung.label in sim.discarded
    assert "b" not in sim.running
    sim.handle(WorkerLost("b", "killed"))
    sim.handle(WorkerJoined("b"))
    assert "b" in sim.running


def test_beats_keep_a_worker_alive_and_those_of_old_attempts_do_not() -> None:
    sim = joined("a", tasks=1, policy=Policy(heartbeat_timeout_s=10))
    spec = sim.running["a"]
    for sim.now in (5.0, 14.0, 23.0):
        sim.handle(WorkerBeat("a", spec.label))
    assert sim.machine.handle(Tick(), 30.0) == []
    sim.now = 31.0
    sim.handle(WorkerBeat("a", "0-0-9"))
    assert [type(step) for step in sim.machine.handle(Tick(), 34.0)] == [Kill]
    assert sim.machine.handle(Tick(), 40.0) == [], "killed once"


def test_a_process_that_starts_has_more_time() -> None:
    sim = joined("a", tasks=1, policy=Policy(heartbeat_timeout_s=10, start_timeout_s=100))
    assert sim.machine.handle(Tick(), 99.0) == []
    assert [type(step) for step in sim.machine.handle(Tick(), 101.0)] == [Kill]


def test_an_overdue_attempt_is_an_error_of_the_task_not_a_loss() -> None:
    sim = joined("a", tasks=1, policy=Policy(task_timeout_s=5, max_task_errors=2, max_worker_losses=1))
    for now in (0.0, 10.0):
        sim.now = now
        sim.handle(WorkerBeat("a", sim.running["a"].label))
        sim.now = now + 6
        [kill] = sim.machine.handle(Tick(), sim.now)
        assert isinstance(kill, Kill) and kill.overdue
        sim.lose("a")
        if sim.end is None:
            sim.now = now + 10
            sim.handle(WorkerJoined("a"))
    assert isinstance(sim.end, GiveUp)
    assert sim.end.count == 2
    assert sim.end.error is not None and "task_timeout_s=5" in sim.end.error.text


def test_a_death_that_is_the_tasks_fault_counts_as_its_error() -> None:
    sim = joined("a", tasks=1, policy=Policy(max_task_errors=1))
    sim.running.pop("a")
    sim.handle(WorkerLost("a", "memory", error=ERROR))
    assert isinstance(sim.end, GiveUp)
    assert (sim.end.error, sim.end.count) == (ERROR, 1)


def test_attempts_become_careful_and_learn_what_killed_the_ones_before() -> None:
    sim = joined("a", tasks=1, policy=Policy(poison_after_losses=2))
    seen = []
    for poison in (None, None, (1, 7), (1, 9)):
        spec = sim.running.pop("a")
        seen.append((spec.careful, spec.poison))
        sim.handle(WorkerLost("a", "killed", poison))
        sim.handle(WorkerJoined("a"))
    seen.append((sim.running["a"].careful, sim.running["a"].poison))
    assert seen == [(False, ()), (False, ()), (True, ()), (True, ((1, 7),)), (True, ((1, 7), (1, 9)))]


def released(plan: Plan, policy: Policy = Policy(), workers: int = 6) -> list[str]:
    machine = Coordinator(plan, "x", policy)
    machine.start(0.0)
    steps = [step for at in range(workers) for step in machine.handle(WorkerJoined(f"w{at}"), 0.0)]
    return [step.worker for step in steps if isinstance(step, Release)]


def test_idle_workers_are_released_in_the_last_stage_but_for_a_spare_each() -> None:
    plan = compute_plan(Dataset.from_list([1, 2], shards=2).map(abs).pipeline)
    assert len(released(plan)) == 2, "two run, two are spare"
    assert released(plan, Policy(drain=False)) == []
    assert released(three_stages(1)) == [], "later stages may need them"
