"""Sweeps: many workers walk one list of targets, and each target is run once.

Nobody hands out work. Every worker takes the first target that is neither done nor being worked on, under the step's
own lease, so workers may come, die and come back at any time, on any machine that sees the store. A target is an
ordinary step: staged, hashed, recorded, with every failed attempt kept. A target that fails stops the worker that ran
it (a broken machine should not eat the list); its peers try the target again.

A *gang* is a worker of several processes, as a multi-host training job is. Only its leader looks at leases; it
announces each target to the followers, which run the same function at the same time. A target is done when every
process of the gang is done with it, and failed when one of them failed.
"""

import contextvars
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rigging.filesystem.prefix import marin_prefix
from rigging.job_identity import JobIdentity
from rigging.timing import Clock, SystemClock

from marin.errors import GangError, PlanError, StepFailedError
from marin.execution._files import check_prefix, check_store, create_text, exists
from marin.execution._objects import is_remote
from marin.execution.artifact import Artifact
from marin.execution.attempt_context import StepAttempt, attempt_scope, step_attempt
from marin.execution.decision import Action, Reason, ReasonKind, decide
from marin.execution.facts import gather_facts
from marin.execution.layout import StepLayout
from marin.execution.lazy import ArtifactStep, lower
from marin.execution.outcomes import Outcome, StepOutcome
from marin.execution.records import parse_object, read_text
from marin.execution.settings import RunnerSettings, Waiting
from marin.execution.step_execution import StepExecution
from marin.execution.step_spec import StepSpec
from marin.execution.step_status import Status, read_status, settled_epoch
from marin.execution.transaction import is_settled


@dataclass(frozen=True)
class SweepTarget:
    """One point of a sweep.

    Attributes:
        target_id: Its name in the sweep, a path of plain segments such as ``lr=0.1/seed=0``.
        config: What ``run_fn`` reads; its canonical form is the target's recipe.
    """

    target_id: str
    config: Any


@dataclass(frozen=True)
class GangRound:
    """One announcement of a gang's leader.

    Attributes:
        number: 0, 1, 2 and so on.
        target_id: The target to run; None ends the gang.
        output_path: Folder that the leader's body writes; followers may write files of their own into it.
        attempt: Id of the leader's attempt.
    """

    number: int
    target_id: str | None
    output_path: str = ""
    attempt: str = ""


class GangCoordinator(Protocol):
    """How the processes of one gang agree on what to run next."""

    @property
    def is_leader(self) -> bool:
        """Whether this process looks at leases."""
        ...

    def announce(self, announcement: GangRound) -> None:
        """Leader: tell the followers."""
        ...

    def wait_round(self, number: int) -> GangRound:
        """Follower: wait for an announcement."""
        ...

    def finish_round(self, number: int, problem: str = "") -> None:
        """Follower: say that this process is done with a round, and what went wrong if anything did."""
        ...

    def wait_followers(self, number: int) -> None:
        """Leader: wait until every follower is done with a round.

        Raises:
            GangError: One had a problem, or was not done in time.
        """
        ...


class FolderGang:
    """A gang that meets in a folder which all its processes see; one folder for one life of the gang.

    Args:
        folder: Local or remote folder, new for every start of the gang (its job id and attempt make a good name).
        identity: Rank and count of this process.
        clock: Source of time.
        timeout_s: Longest wait for an announcement or for the followers' end, in seconds.
        poll_s: Seconds between looks.
    """

    def __init__(
        self,
        folder: str,
        identity: JobIdentity,
        *,
        clock: Clock = SystemClock(),
        timeout_s: float = 86_400.0,
        poll_s: float = 0.2,
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._clock = clock
        self._timeout_s = timeout_s
        self._poll_s = poll_s

    @property
    def is_leader(self) -> bool:
        """Whether this process is rank 0."""
        return self._identity.is_coordinator

    def announce(self, announcement: GangRound) -> None:
        """Write the announcement.

        Raises:
            GangError: The folder belongs to another gang, or to an earlier life of this one.
        """
        path = self._round_path(announcement.number)
        if not create_text(path, json.dumps(dataclasses.asdict(announcement)) + "\n"):
            raise GangError(self._folder, f"round {announcement.number} was announced before")

    def wait_round(self, number: int) -> GangRound:
        """Read the announcement when it is there.

        Raises:
            GangError: It did not come in time.
        """
        text = self._wait_text(self._round_path(number), f"round {number}")
        return GangRound(**parse_object(self._round_path(number), text))

    def finish_round(self, number: int, problem: str = "") -> None:
        """Write that this process is done with a round."""
        create_text(self._done_path(number, self._identity.rank), json.dumps({"problem": problem}) + "\n")

    def wait_followers(self, number: int) -> None:
        """Wait until every follower is done with a round.

        Raises:
            GangError: One had a problem, or was not done in time.
        """
        for rank in range(1, self._identity.count):
            path = self._done_path(number, rank)
            text = self._wait_text(path, f"the end of round {number} at rank {rank}")
            if problem := parse_object(path, text).get("problem"):
                raise GangError(self._folder, f"rank {rank} ended with {problem}")

    def _wait_text(self, path: str, what: str) -> str:
        deadline = self._clock.monotonic() + self._timeout_s
        while (text := read_text(path)) is None:
            if self._clock.monotonic() >= deadline:
                raise GangError(self._folder, f"{what} did not come within {self._timeout_s:g} s")
            self._clock.sleep(self._poll_s)
        return text

    def _round_path(self, number: int) -> str:
        return os.path.join(self._folder, "rounds", f"{number:06d}.json")

    def _done_path(self, number: int, rank: int) -> str:
        return os.path.join(self._folder, "done", f"{number:06d}-{rank:06d}.json")


RunTarget = Callable[[SweepTarget], Artifact | None]
"""Runs one target; writes its files below ``step_attempt().output_path`` and may return an artifact."""


def claim_and_run(
    sweep_root: str,
    targets: Sequence[SweepTarget],
    run_fn: RunTarget,
    *,
    coordinator: GangCoordinator | None = None,
    version: str = "auto",
    artifact_type: type[Artifact] = Artifact,
    settings: RunnerSettings | None = None,
) -> list[StepOutcome]:
    """Work on a sweep until every target is done; any number of processes may call this at the same time.

    Args:
        sweep_root: Name of the sweep below ``MARIN_PREFIX``, or a path or URL of which the last segment is the name.
            Results are steps ``<sweep>/<target_id>@<version>``.
        targets: The same list, in the same order, in every worker.
        run_fn: Runs one target.
        coordinator: For a worker of several processes.
        version: Version of every target; ``auto`` gives a target whose config changed a new address.
        artifact_type: What ``run_fn`` returns.
        settings: Clock and lease times.
    Returns:
        What became of each target, in order: ``executed`` here, ``cached`` (a peer ran it, or it was done before) or
        ``known_failure``. Followers of a gang return an empty list.
    Raises:
        StepFailedError: A target failed in this worker; the original exception is the cause.
        PlanError: Two targets have one id, or an id cannot be a path.
        GangError: In a follower, when the leader is gone. (In the leader, a follower that failed or is gone is the
            cause of the target's failure.)
    Example:
        >>> import tempfile
        >>> targets = [SweepTarget(f"lr={lr}", {"lr": lr}) for lr in (0.1, 0.2)]
        >>> done = claim_and_run(tempfile.mkdtemp() + "/sweep", targets, lambda target: None)
        >>> [outcome.outcome.value for outcome in done]
        ['executed', 'executed']
    """
    if coordinator is not None and not coordinator.is_leader:
        _follow(coordinator, {target.target_id: target for target in targets}, run_fn)
        return []
    gang = _Leader(coordinator)
    prefix, name = _split_root(sweep_root)
    worker = _SweepWorker(prefix, settings or RunnerSettings())
    specs = _target_specs(name, targets, gang.wrap(run_fn), version, artifact_type)
    try:
        return worker.work(specs)
    finally:
        gang.end()


def _split_root(sweep_root: str) -> tuple[str, str]:
    """Prefix of the store and name of the sweep below it."""
    if not (is_remote(sweep_root) or os.path.isabs(sweep_root)):
        return check_prefix(marin_prefix()), sweep_root.strip("/")
    root = sweep_root.rstrip("/")
    prefix = marin_prefix()
    if root.startswith(prefix + "/"):
        return check_prefix(prefix), root.removeprefix(prefix + "/")
    parent, name = os.path.split(root)
    return check_prefix(parent), name


def _target_specs(
    name: str, targets: Sequence[SweepTarget], run_fn: RunTarget, version: str, artifact_type: type[Artifact]
) -> list[StepSpec]:
    seen: set[str] = set()
    specs = []
    for target in targets:
        if target.target_id in seen:
            raise PlanError(name, f"two targets have the id {target.target_id!r}.", hint="Make every id unique.")
        seen.add(target.target_id)
        step = ArtifactStep(
            f"{name}/{target.target_id}",
            version,
            artifact_type=artifact_type,
            run=lambda config, target=target: run_fn(target),
            build_config=lambda ctx, target=target: target.config,
        )
        specs.append(lower(step))
    return specs


class _SweepWorker:
    """One process that works through the list; the order is the list's, the state is the store's."""

    def __init__(self, prefix: str, settings: RunnerSettings) -> None:
        self._prefix = prefix
        self._settings = settings
        self._executions: dict[StepSpec, StepExecution] = {}

    def work(self, specs: Sequence[StepSpec]) -> list[StepOutcome]:
        """Look at the targets again and again until each is settled."""
        check_store(self._prefix)
        settled: dict[StepSpec, StepOutcome] = {}
        while True:
            progress = False
            for spec in specs:
                if spec in settled:
                    continue
                result = self._try(spec)
                if isinstance(result, Waiting):
                    continue
                settled[spec] = result
                if result.outcome is Outcome.FAILED:
                    raise StepFailedError(result.step, result.category, result.message) from result.error
                # Whatever was busy before may have come free while this target ran: begin at the front again.
                progress = result.outcome is Outcome.EXECUTED
                if progress:
                    break
            if len(settled) == len(specs):
                return [settled[spec] for spec in specs]
            if not progress:
                self._settings.clock.sleep(self._settings.poll_s)

    def _try(self, spec: StepSpec) -> StepOutcome | Waiting:
        execution = self._execution(spec)
        status = read_status(execution.layout)
        decision = decide(spec, gather_facts(spec, execution.layout, status))
        if decision.action is Action.SERVE:
            assert status is not None
            if not is_settled(execution.layout, status):
                execution.heal()
            return execution.outcome(Outcome.CACHED, reasons=decision.reasons, content_digest=status.content_digest)
        if decision.action is Action.KNOWN_FAILURE:
            assert status is not None
            return execution.outcome(
                Outcome.KNOWN_FAILURE, reasons=decision.reasons, category=status.category, message=status.message
            )
        execution.reasons = decision.reasons
        execution.seen_epoch = settled_epoch(status)
        return execution.try_run()

    def _execution(self, spec: StepSpec) -> StepExecution:
        # One object for all tries, because the lease watches a foreign holder's heartbeat.
        if spec not in self._executions:
            self._executions[spec] = StepExecution(
                spec=spec,
                prefix=self._prefix,
                path=spec.path(self._prefix),
                deps=(),
                settings=self._settings,
                reasons=(Reason(ReasonKind.NEVER_RUN, "a target of a sweep"),),
                forced=False,
                seen_epoch=0,
                context=contextvars.copy_context(),
                started=lambda step, why: None,
                progress=lambda step, text: None,
            )
        return self._executions[spec]


class _Leader:
    """The leader's side of a gang; does nothing for a worker of one process."""

    def __init__(self, coordinator: GangCoordinator | None) -> None:
        self._coordinator = coordinator
        self._number = 0

    def wrap(self, run_fn: RunTarget) -> RunTarget:
        """``run_fn``, run by the whole gang at once."""
        coordinator = self._coordinator
        if coordinator is None:
            return run_fn

        def together(target: SweepTarget) -> Artifact | None:
            attempt = step_attempt()
            assert attempt is not None
            number, self._number = self._number, self._number + 1
            coordinator.announce(GangRound(number, target.target_id, attempt.output_path, attempt.attempt))
            result = run_fn(target)
            coordinator.wait_followers(number)
            return result

        return together

    def end(self) -> None:
        """Let the followers go."""
        if self._coordinator is not None:
            self._coordinator.announce(GangRound(self._number, None))


def _follow(coordinator: GangCoordinator, targets: dict[str, SweepTarget], run_fn: RunTarget) -> None:
    number = 0
    while (announcement := coordinator.wait_round(number)).target_id is not None:
        try:
            _follow_round(announcement, targets, run_fn)
        except BaseException as error:  # the process's boundary: the leader must learn why this follower is gone
            coordinator.finish_round(number, f"{type(error).__name__}: {error}")
            raise
        coordinator.finish_round(number)
        number += 1


def _follow_round(announcement: GangRound, targets: dict[str, SweepTarget], run_fn: RunTarget) -> None:
    target = targets.get(announcement.target_id or "")
    if target is None:
        raise PlanError(
            announcement.target_id or "",
            "the leader announced it, and it is not in this process's list.",
            hint="Give every process the same targets.",
        )
    attempt = StepAttempt(
        step=target.target_id,
        attempt=announcement.attempt,
        epoch=0,
        output_path=announcement.output_path,
        scratch_path="",
    )
    with attempt_scope(attempt):
        run_fn(target)


def sweep_done(sweep_root: str, targets: Sequence[SweepTarget], *, version: str = "auto") -> dict[str, bool]:
    """Which targets have an output, by id; reads statuses only.

    Example:
        >>> import tempfile
        >>> sweep_done(tempfile.mkdtemp() + "/sweep", [SweepTarget("lr=0.1", {"lr": 0.1})])
        {'lr=0.1': False}
    """
    prefix, name = _split_root(sweep_root)
    done = {}
    for target, spec in zip(targets, _target_specs(name, targets, lambda target: None, version, Artifact), strict=True):
        layout = StepLayout(spec.path(prefix))
        status = read_status(layout)
        done[target.target_id] = status is not None and status.status is Status.SUCCESS and exists(layout.output_path)
    return done
