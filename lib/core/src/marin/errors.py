"""Everything the experiment core raises on purpose.

The tree; each class also inherits the builtin that a caller would expect::

    MarinError (Exception)
    ├── PlanError (ValueError)                  a graph is refused before anything runs
    │   ├── InvalidNameError
    │   ├── InvalidVersionError
    │   ├── UnresolvedVersionError
    │   ├── UnfingerprintableError (TypeError)
    │   ├── UndeclaredDependencyError
    │   ├── UndeclaredArgumentError (KeyError)
    │   ├── InputBindingError (TypeError)
    │   ├── StepCycleError
    │   ├── StepCollisionError
    │   ├── MutableDependencyError
    │   ├── FingerprintMismatchError
    │   ├── SecretInConfigError
    │   ├── PlanRefusedError                    a policy does not allow it
    │   ├── CrossRegionError
    │   └── UnknownStepError (KeyError)
    ├── StoreError (OSError)                    the store cannot do what was asked
    │   ├── StoreUnavailableError
    │   ├── InputMissingError (FileNotFoundError)
    │   ├── RecordNotFoundError (FileNotFoundError)
    │   ├── RecordFormatError (ValueError)
    │   ├── CorruptRecordError (ValueError)
    │   ├── ReplicaMismatchError (ValueError)
    │   └── UnsupportedFileError (ValueError)
    ├── ArtifactError (TypeError)
    │   ├── ArtifactTypeMismatchError
    │   └── ArtifactFieldError (ValueError)
    ├── StepError (RuntimeError)                a step ran, or should have, and there is no result
    │   ├── StepFailedError
    │   ├── StepTimeoutError (TimeoutError)
    │   ├── StepLeaseLostError
    │   └── GangError
    └── UsageError (ValueError)                 a command line or a script that cannot be used
        ├── ScriptError
        ├── PolicyError
        └── KeyFileError

Every message says what failed, with the values, what was expected, and what to do. ``hint`` repeats the last part
alone, which is what a command line prints under ``hint:``.
"""

from collections.abc import Iterable, Sequence
from typing import Any


def _rebuild(cls: type["MarinError"], message: str, state: dict[str, Any]) -> "MarinError":
    # A class that is also an OSError has that layout, whichever builtin its ``__new__`` is found on.
    error = OSError.__new__(cls) if issubclass(cls, OSError) else cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class MarinError(Exception):
    """Root of the tree. Catch it to catch everything the core raises on purpose.

    Attributes:
        hint: What to do about it, one sentence; may be empty.
    """

    hint: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and attributes, so that an error survives the trip out of a child process."""
        return _rebuild, (type(self), str(self), dict(self.__dict__))

    def __str__(self) -> str:
        """The message alone (``KeyError`` would quote it)."""
        return Exception.__str__(self)


class PlanError(MarinError, ValueError):
    """A graph of steps is refused before anything runs.

    Attributes:
        step: Name of the offending step.
        field: Field of the step's config that is at fault, or an empty string.
    """

    def __init__(self, step: str, problem: str, *, field: str = "", hint: str = "") -> None:
        self.step = step
        self.field = field
        self.hint = hint
        where = f"step={step!r}" + (f", field={field!r}" if field else "")
        super().__init__(f"cannot plan: {where}: {problem}" + (f" {hint}" if hint else ""))


class InvalidNameError(PlanError):
    """A step's name cannot become a path under the store."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            name,
            f"the name {reason}; expected segments joined by '/', none empty, '..' or '.'-prefixed, and no scheme.",
            field="name",
            hint="Rename the step, for example 'tokens/fineweb'.",
        )
        self.name = name


class InvalidVersionError(PlanError):
    """A version is neither a real calendar date nor one of the named kinds."""

    def __init__(self, step: str, version: str, reason: str) -> None:
        super().__init__(
            step,
            f"version={version!r} {reason}; expected YYYY.MM.DD[.N], 'dev', 'NAME-dev', 'auto' or 'NAME-auto'.",
            field="version",
            hint="Use a real date for results to keep, 'dev' while trying things out.",
        )
        self.version = version


class UnresolvedVersionError(PlanError):
    """A step without a version was built where no default version is in force."""

    def __init__(self, step: str) -> None:
        super().__init__(
            step,
            "no version was given and no build context provides one.",
            field="version",
            hint="Pass version=... or build inside build_context(VersionCodex(...)); on a command line pass --version.",
        )


class UnfingerprintableError(PlanError, TypeError):
    """A config holds a value that has no canonical form, so its identity cannot be computed."""

    def __init__(self, step: str, field: str, value_type: str, reason: str) -> None:
        super().__init__(
            step,
            f"a value of type {value_type} {reason}; expected dataclasses, enums, JSON-like values, paths or arrays.",
            field=field,
            hint="Put plain data in the config and build the object inside the step's function.",
        )
        self.value_type = value_type


class UndeclaredDependencyError(PlanError):
    """``build_config`` reads a step that is not listed in ``deps``."""

    def __init__(self, step: str, dependency: str) -> None:
        super().__init__(
            step,
            f"build_config reads {dependency!r}, which is not among its deps.",
            field="deps",
            hint=f"Add the handle of {dependency!r} to deps=(...).",
        )
        self.dependency = dependency


class UndeclaredArgumentError(PlanError, KeyError):
    """``build_config`` reads a runtime argument that the step does not declare."""

    def __init__(self, step: str, key: str, known: Iterable[str]) -> None:
        known = sorted(known)
        super().__init__(
            step,
            f"runtime argument {key!r} is not declared; declared: {known}.",
            field="runtime_args",
            hint=f"Add {key!r} to runtime_args={{...}}.",
        )
        self.key = key
        self.known = known


class InputBindingError(PlanError, TypeError):
    """A step's inputs do not fit the signature of its function, or options contradict one another."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(
            step, f"{reason}.", field="inputs", hint="Compare the arguments with the function's signature."
        )
        self.reason = reason


class StepCycleError(PlanError):
    """Steps depend on one another in a circle."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(
            cycle[0],
            f"the steps depend on one another: {' -> '.join(cycle)}.",
            field="deps",
            hint="Remove one of these dependencies.",
        )
        self.cycle = tuple(cycle)


class StepCollisionError(PlanError):
    """Two different steps would write the same place, or one inside the other."""

    def __init__(self, step: str, other: str, path: str, reason: str) -> None:
        super().__init__(
            step,
            f"{reason}: other={other!r}, path={path!r}.",
            field="name",
            hint="Give one of them another name or version.",
        )
        self.other = other
        self.path = path


class MutableDependencyError(PlanError):
    """A step with a fixed version reads one that may change under it."""

    def __init__(self, step: str, version: str, dependency: str) -> None:
        super().__init__(
            step,
            f"version={version!r} is fixed but the dependency {dependency!r} is mutable.",
            field="deps",
            hint="Give the dependency a date (or 'auto'), or make this step a '-dev' version too.",
        )
        self.version = version
        self.dependency = dependency


class FingerprintMismatchError(PlanError):
    """A recipe differs from the fingerprint that its author pinned."""

    def __init__(self, step: str, expected: str, actual: str, drift: str = "") -> None:
        super().__init__(
            step,
            f"expected_fingerprint={expected!r}, actual={actual!r}." + (f" Changed: {drift}." if drift else ""),
            field="expected_fingerprint",
            hint="Restore the recipe, or bump the version and pin the new fingerprint.",
        )
        self.expected = expected
        self.actual = actual


class SecretInConfigError(PlanError):
    """A config holds a secret, which would be stored and shown wherever the recipe is. The value is in no message."""

    def __init__(self, step: str, field: str, reason: str) -> None:
        super().__init__(
            step,
            f"this field may not be recorded: {reason}.",
            field=field,
            hint="Put a reference there (env:NAME or file:/path) and resolve it inside the step with rigging.secrets.",
        )
        self.reason = reason


class PlanRefusedError(PlanError):
    """A policy does not allow a plan: a licence, a protected evaluation set, a check that is missing.

    Attributes:
        refusals: Why, one each, with the path from the source to the step.
        policy: Which policy said so.
    """

    def __init__(self, refusals: Sequence[Any], policy: str) -> None:
        self.refusals = tuple(refusals)
        self.policy = policy
        first = self.refusals[0]
        lines = "\n".join(f"  {refusal.line()}" for refusal in self.refusals)
        count = f"{len(self.refusals)} rules" if len(self.refusals) > 1 else "a rule"
        super().__init__(
            first.step,
            f"{count} of the policy {policy} refused it:\n{lines}\n",
            field=first.rule,
            hint=first.remedy,
        )


class UnknownStepError(PlanError, KeyError):
    """An option names a step that is not in the graph."""

    def __init__(self, name: str, known: Iterable[str], *, option: str = "force") -> None:
        known = sorted(known)
        shown = ", ".join(known[:12]) + (f", ... ({len(known)} in all)" if len(known) > 12 else "")
        super().__init__(
            name, f"{option} names no step of this graph; steps: {shown}.", field=option, hint="Check the name."
        )
        self.name = name
        self.known = known


class CrossRegionError(PlanError):
    """Steps that would run touch data in another region than the one that they would run in.

    Attributes:
        conflicts: Each step with the path and the two regions.
    """

    failure_category = "region"

    def __init__(self, conflicts: Sequence[Any]) -> None:
        self.conflicts = tuple(conflicts)
        lines = "\n".join(f"  {conflict.line()}" for conflict in self.conflicts[:10])
        super().__init__(
            self.conflicts[0].step,
            f"data would cross regions {len(self.conflicts)} times:\n{lines}\n",
            field="region",
            hint="Run where the data is, mirror it (ctx.mirrored), or give a reason with --allow-cross-region.",
        )


class StoreError(MarinError, OSError):
    """The store cannot do what was asked of it.

    Attributes:
        path: The file or folder concerned.
        reason: What went wrong there.
    """

    template = "the store failed: path={path!r}: {reason}."
    default_hint = "Check the path."

    def __init__(self, path: str, reason: str = "", *, hint: str = "") -> None:
        self.path = path
        self.reason = reason
        self.hint = hint or self.default_hint
        super().__init__(f"{self.template.format(path=path, reason=reason)} {self.hint}")


class StoreUnavailableError(StoreError):
    """The store cannot be written: missing rights, a full disk, a file in the place of a folder, an unknown scheme."""

    template = (
        "the store cannot be used: prefix={path!r}: {reason}; expected a writable local folder with free space, or a "
        "bucket that can compare and swap."
    )
    default_hint = "Pass another --prefix (or set MARIN_PREFIX), or free some space."


class InputMissingError(StoreError, FileNotFoundError):
    """Data that a step was pinned to, or adopted from, does not exist."""

    template = "an input is missing: path={path!r}: {reason}."
    default_hint = "Restore the data or point the step elsewhere."


class RecordNotFoundError(StoreError, FileNotFoundError):
    """A step or record was asked for that the store does not hold."""

    template = "no record: path={path!r}: {reason}."
    default_hint = "Run the step first, or list what there is with 'marin ls'."


class RecordFormatError(StoreError, ValueError):
    """A record was written by a newer version of this library; it is left alone."""

    template = "cannot read a newer record: path={path!r}: {reason}. Nothing was overwritten."
    default_hint = "Upgrade marin-core, or use another prefix."


class CorruptRecordError(StoreError, ValueError):
    """A record exists but does not parse. It is never taken for an absent one."""

    template = "a record is corrupt: path={path!r}: {reason}."
    default_hint = "Inspect the file; move it away to have the step rebuilt."


class ReplicaMismatchError(StoreError, ValueError):
    """What was copied from another store is not what that store's manifest says."""

    failure_category = "data"
    template = "the copy differs from its original: path={path!r}: {reason}. Nothing was committed."
    default_hint = "Verify the original with 'marin verify --deep' in its own store."


class UnsupportedFileError(StoreError, ValueError):
    """A step left something in its output that cannot be committed (a socket, a device, a broken link)."""

    template = "cannot commit an output: path={path!r}: {reason}; expected files, folders and links inside the output."
    default_hint = "Remove it before the step returns."


class ArtifactError(MarinError, TypeError):
    """An artifact and its class do not fit."""


class ArtifactTypeMismatchError(ArtifactError):
    """A record, or a step's return value, is of another artifact type than the one asked for."""

    def __init__(self, path: str, expected: str, actual: str) -> None:
        self.path = path
        self.expected = expected
        self.actual = actual
        self.hint = "Ask for the recorded type, or bump the version of the step."
        super().__init__(f"wrong artifact type: path={path!r}, actual={actual!r}; expected {expected!r}. {self.hint}")


class ArtifactFieldError(ArtifactError, ValueError):
    """A declared result field is missing or has a value of another type."""

    def __init__(self, artifact_type: str, field: str, reason: str) -> None:
        self.artifact_type = artifact_type
        self.field = field
        self.reason = reason
        self.hint = "Return the artifact with this field set, or give the field a default."
        super().__init__(f"bad result field: artifact_type={artifact_type!r}, field={field!r}: {reason}. {self.hint}")


class StepError(MarinError, RuntimeError):
    """A step ran, or should have run, and there is no result."""


class StepFailedError(StepError):
    """A result was asked for of a step that failed. The original exception is its ``__cause__`` where known.

    Attributes:
        step: ``name@version``.
        category: Failure category, such as ``user_code``; ``dependency`` when an input failed.
    """

    def __init__(self, step: str, category: str, reason: str) -> None:
        self.step = step
        self.category = category
        self.reason = reason
        self.hint = f"See 'marin why {step}' and 'marin failures'."
        super().__init__(f"step failed: step={step!r}, category={category!r}: {reason}. {self.hint}")


class StepTimeoutError(StepError, TimeoutError):
    """A step's body ran longer than its ``timeout_s``."""

    failure_category = "timeout"

    def __init__(self, step: str, timeout_s: float) -> None:
        self.step = step
        self.timeout_s = timeout_s
        self.hint = "Raise timeout_s on the step, or make the step resumable through scratch_path."
        super().__init__(f"step ran too long: step={step!r}, timeout_s={timeout_s}. {self.hint}")


class StepLeaseLostError(StepError):
    """The lease on a step's output was lost, so another driver owns it now and nothing was written."""

    failure_category = "lease_lost"

    def __init__(self, step: str, epoch: int, reason: str) -> None:
        self.step = step
        self.epoch = epoch
        self.reason = reason
        self.hint = "Nothing to do: the new owner's result counts; run again to wait for it."
        super().__init__(f"lost the lease: step={step!r}, epoch={epoch}: {reason}. {self.hint}")


class GangError(StepError):
    """The processes of one sweep worker lost one another."""

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        self.hint = "Start every process of the gang again, with a new folder to meet in."
        super().__init__(f"a gang broke up: folder={folder!r}: {reason}. {self.hint}")


class UsageError(MarinError, ValueError):
    """A command line that cannot be carried out as given."""

    def __init__(self, problem: str, *, hint: str = "") -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(problem + (f" {hint}" if hint else ""))


class ScriptError(UsageError):
    """An experiment script cannot be loaded or exposes no steps."""

    def __init__(self, script: str, reason: str, *, hint: str = "") -> None:
        self.script = script
        self.reason = reason
        super().__init__(
            f"cannot use script={script!r}: {reason}.",
            hint=hint or "A script needs 'main = experiment_main(build)' from marin.experiment.cli at module level.",
        )


class PolicyError(UsageError):
    """A policy file that cannot be used: not TOML, an unknown key, a value of the wrong kind, an incomplete waiver."""

    def __init__(self, path: str, key: str, reason: str, *, hint: str = "") -> None:
        self.path = path
        self.key = key
        self.reason = reason
        where = f"policy={path!r}" + (f", key={key!r}" if key else "")
        super().__init__(
            f"bad policy: {where}: {reason}.", hint=hint or "Compare it with the keys in docs/packages/core.md (Gates)."
        )


class KeyFileError(UsageError):
    """A signing or verification key that cannot be used. Never holds key material."""

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"bad key: path={path!r}: {reason}.", hint=hint or "Make a pair with 'marin keygen'.")
