"""Steps, artifacts and the engine that runs them.

``name@version`` is the address of an output, a fingerprint says which recipe made it, and a commit protocol makes
sure that what is there is complete, hashed and on record. Importing this package loads nothing heavy: no jax, no
pyarrow.

Example:
    >>> import tempfile
    >>> from marin.execution import Artifact, ArtifactStep, resolve
    >>> class Total(Artifact):
    ...     total: int
    >>> def add(numbers): return Total(total=sum(numbers))
    >>> step = ArtifactStep("total", "auto", artifact_type=Total, run=add, build_config=lambda ctx: [1, 2, 3])
    >>> resolve(step, prefix=tempfile.mkdtemp()).total
    6
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marin.errors import StepFailedError
    from marin.execution.artifact import Artifact
    from marin.execution.attempt_context import StepAttempt, step_attempt
    from marin.execution.build_context import VersionCodex
    from marin.execution.entry import explain, resolve, run
    from marin.execution.failures import FailureCategory, RetryPolicy
    from marin.execution.fingerprint import describe_drift
    from marin.execution.lazy import OUT, SCRATCH, ArtifactStep, StepContext, apply, lower, materialized_config
    from marin.execution.outcomes import Outcome, RunSummary, StepOutcome
    from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
    from marin.execution.remote_call import RemoteCallable, remote
    from marin.execution.step_spec import StepSpec

_EXPORTS = {
    "Artifact": "marin.execution.artifact",
    "ArtifactRecord": "marin.execution.records",
    "ArtifactStep": "marin.execution.lazy",
    "AttemptRecord": "marin.execution.records",
    "FailureCategory": "marin.execution.failures",
    "OUT": "marin.execution.lazy",
    "Outcome": "marin.execution.outcomes",
    "RemoteCallable": "marin.execution.remote_call",
    "RetryPolicy": "marin.execution.failures",
    "RunSummary": "marin.execution.outcomes",
    "SCRATCH": "marin.execution.lazy",
    "StepAttempt": "marin.execution.attempt_context",
    "StepContext": "marin.execution.lazy",
    "StepFailedError": "marin.errors",
    "StepOutcome": "marin.execution.outcomes",
    "StepSpec": "marin.execution.step_spec",
    "VersionCodex": "marin.execution.build_context",
    "apply": "marin.execution.lazy",
    "describe_drift": "marin.execution.fingerprint",
    "explain": "marin.execution.entry",
    "lower": "marin.execution.lazy",
    "materialized_config": "marin.execution.lazy",
    "read_record": "marin.execution.records",
    "remote": "marin.execution.remote_call",
    "resolve": "marin.execution.entry",
    "run": "marin.execution.entry",
    "step_attempt": "marin.execution.attempt_context",
}

__all__ = [
    "Artifact",
    "ArtifactRecord",
    "ArtifactStep",
    "AttemptRecord",
    "FailureCategory",
    "OUT",
    "Outcome",
    "RemoteCallable",
    "RetryPolicy",
    "RunSummary",
    "SCRATCH",
    "StepAttempt",
    "StepContext",
    "StepFailedError",
    "StepOutcome",
    "StepSpec",
    "VersionCodex",
    "apply",
    "describe_drift",
    "explain",
    "lower",
    "materialized_config",
    "read_record",
    "remote",
    "resolve",
    "run",
    "step_attempt",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
