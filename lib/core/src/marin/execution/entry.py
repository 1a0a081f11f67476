"""Running handles: the calls that an author makes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from rigging.filesystem.prefix import marin_prefix

from marin.execution._files import check_prefix
from marin.execution.artifact import Artifact
from marin.execution.gates import PlanGate
from marin.execution.lazy import ArtifactStep, lower_all
from marin.execution.outcomes import RunSummary
from marin.execution.reporter import RunReporter
from marin.execution.run_plan import RunOptions
from marin.execution.settings import RunnerSettings
from marin.execution.step_runner import StepRunner
from marin.execution.step_spec import StepSpec

T = TypeVar("T", bound=Artifact)
Runnable = ArtifactStep[Any] | StepSpec


def lower_mixed(handles: Sequence[Runnable]) -> dict[Runnable, StepSpec]:
    """The executable form of handles and hand-written specs together.

    Raises:
        PlanError: A handle is refused.
    """
    typed = lower_all([handle for handle in handles if isinstance(handle, ArtifactStep)])
    return {**typed, **{handle: handle for handle in handles if isinstance(handle, StepSpec)}}


def run(
    *handles: Runnable,
    max_concurrent: int | None = None,
    force: Sequence[str] = (),
    allow_failed: Sequence[str] = (),
    prefix: str | None = None,
    keep_going: bool = True,
    retry_failed: bool = True,
    reporter: RunReporter | None = None,
    settings: RunnerSettings | None = None,
    gate: PlanGate | None = None,
    mirrors: Sequence[str] = (),
    allow_cross_region: str = "",
) -> RunSummary:
    """Bring steps up to date and say what became of each; a failed step does not raise.

    Args:
        handles: The steps that are wanted; their dependencies are found.
        max_concurrent: Steps at a time; one a core by default.
        force: Names (or ``name@version``) of steps to rebuild.
        allow_failed: Names of steps whose failure does not make the summary not ``ok``.
        prefix: Root of the store; ``MARIN_PREFIX`` or ``./marin_store`` by default.
        keep_going: Whether independent branches go on after a failure.
        retry_failed: Whether steps that failed in an earlier run are tried again. A *known failure* (such as a run that
            diverged) is tried again only when forced or when its recipe changed.
        reporter: Told about progress.
        settings: Clock, lease times and hook, for tests and drills.
        gate: Judges the graph before anything runs, see ``marin.policy.policy_gate``.
        mirrors: Roots of other stores that may have the outputs of ``mirrored`` steps; the cluster's other buckets by
            default.
        allow_cross_region: Why steps may touch data in other regions; kept in the ledger. Without it they may not.
    Returns:
        The summary; ``summary.artifact(handle)`` loads a result, ``summary.raise_if_failed()`` raises.
    Raises:
        PlanError: The graph is refused; nothing ran.
        PlanRefusedError: The gate refused it; nothing ran, and the refusal is on record.
        CrossRegionError: Steps that would run touch data in another region.
        ReplicaMismatchError: A copy from another store is not what it should be.
        StoreUnavailableError: The store cannot be used; nothing ran.
    """
    options = RunOptions(
        max_concurrent,
        tuple(force),
        tuple(allow_failed),
        keep_going,
        retry_failed,
        mirrors=tuple(mirrors),
        allow_cross_region=allow_cross_region,
    )
    lowered = lower_mixed(handles)
    root = check_prefix(prefix if prefix is not None else marin_prefix())
    runner = StepRunner(root, options, reporter=reporter, settings=settings, gate=gate)
    summary = runner.run([lowered[handle] for handle in handles])
    return dataclasses.replace(summary, specs=lowered)


def explain(
    *handles: Runnable,
    prefix: str | None = None,
    force: Sequence[str] = (),
    retry_failed: bool = True,
    gate: PlanGate | None = None,
) -> RunSummary:
    """What ``run`` would do, from the statuses on disk; writes nothing.

    Returns:
        A summary in which ``not_run`` stands for "would run".
    Raises:
        PlanError: The graph is refused.
    """
    lowered = lower_mixed(handles)
    root = check_prefix(prefix if prefix is not None else marin_prefix())
    runner = StepRunner(root, RunOptions(force=tuple(force), retry_failed=retry_failed), gate=gate)
    outcomes = runner.explain([lowered[handle] for handle in handles])
    return RunSummary(root, tuple(outcomes), 0.0, 0, lowered)


def resolve[T: Artifact](handle: ArtifactStep[T], *, max_concurrent: int | None = None, prefix: str | None = None) -> T:
    """Bring one step up to date and load its artifact.

    Raises:
        StepFailedError: There is no output; the original exception is the cause.
        PlanError: The graph is refused.
    """
    return run(handle, max_concurrent=max_concurrent, prefix=prefix).artifact(handle)
