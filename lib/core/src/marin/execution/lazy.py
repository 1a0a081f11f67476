"""Steps as an author writes them: a name, a version, a function, and a config that is built on demand.

The dividing line of the whole engine: everything an author writes *as a literal* while building a config is identity;
everything *pulled from the context* (where the output goes, where an input lies, how many workers to use) is
execution and never changes the fingerprint. ``build_config`` is therefore run twice: once against placeholders, to
compute the identity without touching a store, and once against real paths, to run::

    def config(ctx: StepContext) -> TokenizeConfig:
        return TokenizeConfig(input=ctx.artifact_path(documents), output=ctx.output_path, vocab_size=4096)

    tokens = ArtifactStep(name="tokens", version="auto", artifact_type=TokenCache, run=tokenize, build_config=config,
                          deps=(documents,))
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from rigging.filesystem.mirror import Mirror
from rigging.filesystem.transfer_budget import mirror_budget
from rigging.path_validation import validate_relative_path

from marin.errors import (
    FingerprintMismatchError,
    InputBindingError,
    MarinError,
    MutableDependencyError,
    PlanError,
    UndeclaredArgumentError,
    UndeclaredDependencyError,
)
from marin.execution.artifact import Artifact
from marin.execution.build_context import resolve_version
from marin.execution.failures import RetryPolicy
from marin.execution.fingerprint import canonical_payload, describe_drift, fingerprint_of
from marin.execution.graph import post_order
from marin.execution.secret_fields import refuse_secrets
from marin.execution.step_spec import RunPaths, StepKind, StepSpec
from marin.execution.versions import VersionKind, derive_version, validate_name, version_kind

T = TypeVar("T", bound=Artifact)


@dataclass(frozen=True, eq=False)
class ArtifactStep[T: Artifact]:
    """A step that makes one typed artifact; compared by identity, hashable.

    Attributes:
        name: Path segments under the store.
        version: ``YYYY.MM.DD[.N]``, ``dev``, ``auto`` (or ``NAME-dev``, ``NAME-auto``); None takes the ambient one.
        artifact_type: Class of the result.
        run: Plain function of the config; wrap with ``remote(...)`` to run it as a job.
        build_config: Pure function of the context.
        deps: Every handle that ``build_config`` reads.
        runtime_args: Execution choices, read with ``ctx.runtime_arg``; not part of the identity.
        override_path: Pin to data that exists; nothing is run or recorded.
        adopt_source: Take over data that exists; a record is written.
        adopt_config: What is known about adopted data; part of its identity.
        expected_fingerprint: Refuse to plan when the recipe's fingerprint does not start with this.
        retry: Failure categories that are tried again at once.
        timeout_s: Longest time of one attempt, in seconds.
        mirrored: Take a complete output of the same recipe over from another store of the run, where there is one,
            instead of computing it again.
    """

    name: str
    version: str | None = None
    artifact_type: type[T] = Artifact  # pyrefly: ignore[bad-assignment]
    run: Callable[[Any], T | None] | None = None
    build_config: Callable[["StepContext"], Any] | None = None
    deps: tuple["ArtifactStep[Any]", ...] = ()
    runtime_args: Mapping[str, Any] = field(default_factory=dict)
    override_path: str | None = None
    adopt_source: str | None = None
    adopt_config: Any = None
    expected_fingerprint: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float | None = None
    mirrored: bool = False
    __not_config__: ClassVar[str] = "is a step handle; read its path with ctx.artifact_path(handle)"

    def __post_init__(self) -> None:
        """Check name, version and that the options do not contradict one another.

        Raises:
            InvalidNameError: The name cannot become a path.
            InvalidVersionError: Not a version.
            UnresolvedVersionError: No version here and none in force.
            InputBindingError: Pinned and adopted at once, or nothing to run.
        """
        validate_name(self.name)
        object.__setattr__(self, "version", resolve_version(self.name, self.version))
        version_kind(self.resolved, step=self.name)
        object.__setattr__(self, "deps", tuple(self.deps))
        if self.override_path is not None and self.adopt_source is not None:
            raise InputBindingError(self.name, "override_path and adopt_source exclude one another")
        if self.override_path is None and self.adopt_source is None and (self.run is None or self.build_config is None):
            raise InputBindingError(
                self.name, "run and build_config are needed for a step that is neither pinned nor adopted"
            )

    @property
    def resolved(self) -> str:
        """The version as text; set on creation even where the author left it out."""
        assert self.version is not None
        return self.version

    @property
    def label(self) -> str:
        """``name@version``, with a derived version completed by its fingerprint."""
        return f"{self.name}@{identities([self])[self].version}"

    def fingerprint_payload(self) -> str:
        """Canonical text of the recipe. See ``identities`` for the errors."""
        return identities([self])[self].payload

    def fingerprint(self) -> str:
        """Hash of the recipe: equal under every prefix and region."""
        return identities([self])[self].fingerprint

    def path(self, prefix: str) -> str:
        """Where the output lies under a prefix: the source of adopted data, a pin, or ``prefix/name/version``."""
        return self.adopt_source if self.adopt_source is not None else self.lower().path(prefix)

    def lower(self) -> StepSpec:
        """The executable form. See ``lower``."""
        return lower(self)

    @classmethod
    def adopt(
        cls, name: str, version: str, source: str, *, kind: type[T] = Artifact, config: Any = None
    ) -> "ArtifactStep[T]":  # pyrefly: ignore[bad-function-definition]
        """A handle on data that exists elsewhere: running it writes a record that says so and computes nothing."""
        return cls(name=name, version=version, artifact_type=kind, adopt_source=source, adopt_config=config)


@dataclass(frozen=True)
class Identity:
    """What a recipe is, independent of where it runs."""

    version: str
    payload: str
    fingerprint: str


class StepContext:
    """What ``build_config`` may ask for. At fingerprint time every answer is a placeholder.

    Attributes:
        output_path: Folder to write; a staging folder that becomes the output when the step succeeds.
        scratch_path: Folder that survives failed attempts of the same recipe, for checkpoints; deleted after success.
        prefix: Root of the store.
        region: Region of the process, or None.
        is_fingerprint: Whether this is the pass that computes the identity.
    """

    def __init__(
        self,
        step: ArtifactStep[Any],
        paths: RunPaths,
        references: Mapping[ArtifactStep[Any], str],
        *,
        is_fingerprint: bool,
    ) -> None:
        self.output_path = paths.output_path
        self.scratch_path = paths.scratch_path
        self.prefix = paths.prefix
        self.region = paths.region
        self.is_fingerprint = is_fingerprint
        self._step = step
        self._references = references
        self._loaded: dict[ArtifactStep[Any], Any] = {}

    def artifact_path(self, dep: ArtifactStep[Any]) -> str:
        """Where a dependency's output lies (``name@version`` at fingerprint time).

        Raises:
            UndeclaredDependencyError: The handle is not in ``deps``.
        """
        if dep not in self._references:
            raise UndeclaredDependencyError(self._step.name, getattr(dep, "name", repr(dep)))
        return self._references[dep]

    def resolved(self, dep: ArtifactStep[T]) -> T:
        """A dependency's loaded artifact. Only while running: its fields are not known when the identity is computed.

        Raises:
            UndeclaredDependencyError: The handle is not in ``deps``.
            PlanError: Called at fingerprint time.
        """
        path = self.artifact_path(dep)
        if self.is_fingerprint:
            raise PlanError(
                self._step.name,
                f"build_config loads {dep.name!r} while the identity is computed.",
                field="build_config",
                hint="Guard it with 'if not ctx.is_fingerprint', or pass the path and load inside the function.",
            )
        if dep not in self._loaded:
            self._loaded[dep] = dep.artifact_type.load(path)
        return self._loaded[dep]

    def mirrored(self, path: str, *, budget_gb: float | None = None) -> str:
        """Where data of the stores is in *this* store, after copying it here if it lies in another region.

        Args:
            path: Relative to the root of a store, such as ``raw/books``. It is the identity, wherever the data lies.
            budget_gb: Most that may be copied for it, in 10**9 bytes; None counts against the process's limit.
        Returns:
            The local path or URL; ``mirror://<path>`` at fingerprint time.
        Raises:
            FileNotFoundError: No store has it.
            TransferBudgetExceeded: It is bigger than what is left.
        """
        if self.is_fingerprint:
            return f"mirror://{validate_relative_path(path)}"
        mirror = Mirror(self.prefix)
        if budget_gb is None:
            return str(mirror.resolve(path))
        with mirror_budget(budget_gb):
            return str(mirror.resolve(path))

    def runtime_arg(self, key: str) -> Any:
        """An execution choice (the placeholder ``<key>`` at fingerprint time).

        Raises:
            UndeclaredArgumentError: The step does not declare it.
        """
        if key not in self._step.runtime_args:
            raise UndeclaredArgumentError(self._step.name, key, self._step.runtime_args)
        return f"<{key}>" if self.is_fingerprint else self._step.runtime_args[key]


_PLACEHOLDERS = RunPaths("<output_path>", "<scratch_path>", "<output_path>", "<prefix>", "<region>")


def _build_config(step: ArtifactStep[Any], context: StepContext) -> Any:
    assert step.build_config is not None
    try:
        return step.build_config(context)
    except MarinError:
        raise
    except Exception as error:
        raise PlanError(
            step.name,
            f"build_config raised {type(error).__name__}: {error}.",
            field="build_config",
            hint="build_config must be a pure function of its context.",
        ) from error


def _identify(step: ArtifactStep[Any], known: Mapping[ArtifactStep[Any], Identity]) -> Identity:
    references = {dep: f"{dep.name}@{known[dep].version}" for dep in step.deps}
    if step.adopt_source is not None:
        recipe = {"adopt_source": step.adopt_source, "config": step.adopt_config}
    elif step.override_path is not None:
        recipe = {"config": {"override_path": step.override_path}, "deps": []}
    else:
        context = StepContext(step, _PLACEHOLDERS, references, is_fingerprint=True)
        recipe = {"config": _build_config(step, context), "deps": list(references.values())}
    # The parts are encoded one by one, so that errors name the fields of the author's config.
    parts = [f'"{key}":{canonical_payload(value, step=step.name)}' for key, value in sorted(recipe.items())]
    payload = f"{{{','.join(parts)}}}"
    refuse_secrets(payload, step.name)
    _refuse_secret_arguments(step)
    fingerprint = fingerprint_of(payload)
    return Identity(derive_version(step.resolved, fingerprint), payload, fingerprint)


def _refuse_secret_arguments(step: ArtifactStep[Any]) -> None:
    """Runtime arguments are no part of the identity, but the config that ran is recorded with them."""
    for key, value in step.runtime_args.items():
        try:
            payload = canonical_payload({key: value}, step=step.name)
        except PlanError:
            continue  # a live object: checked in its canonical form when the config is built for the run
        refuse_secrets(payload, step.name)


def reachable(handles: Sequence[ArtifactStep[Any]]) -> list[ArtifactStep[Any]]:
    """Every handle that these need, each once, inputs first.

    Raises:
        StepCycleError: They depend on one another in a circle.
    """
    return post_order(handles, lambda step: step.deps, lambda step: step.name)


def identities(handles: Sequence[ArtifactStep[Any]]) -> dict[ArtifactStep[Any], Identity]:
    """Concrete version, payload and fingerprint of every handle that these need; each is computed once.

    Raises:
        UnfingerprintableError: A config holds a value without a canonical form.
        SecretInConfigError: A config or a runtime argument holds a secret.
        UndeclaredDependencyError: A config reads a handle that is not in ``deps``.
        StepCycleError: The handles depend on one another in a circle.
        PlanError: ``build_config`` raised.
    """
    known: dict[ArtifactStep[Any], Identity] = {}
    for step in reachable(handles):
        known[step] = _identify(step, known)
    return known


def lower(handle: ArtifactStep[Any]) -> StepSpec:
    """The executable form of a handle and of everything it needs. See ``lower_all``."""
    return lower_all([handle])[handle]


def lower_all(handles: Sequence[ArtifactStep[Any]]) -> dict[ArtifactStep[Any], StepSpec]:
    """Lower a graph, each handle once however many paths lead to it.

    Args:
        handles: The handles that are wanted.
    Returns:
        The executable form of every reachable handle.
    Raises:
        FingerprintMismatchError: A pinned recipe changed.
        MutableDependencyError: A fixed version reads a mutable one.
        PlanError: Also everything that ``identities`` refuses.
    """
    known = identities(handles)
    specs: dict[ArtifactStep[Any], StepSpec] = {}
    for step, identity in known.items():
        specs[step] = _lower_one(step, identity, specs)
    return specs


def _lower_one(step: ArtifactStep[Any], identity: Identity, specs: Mapping[ArtifactStep[Any], StepSpec]) -> StepSpec:
    expected = step.expected_fingerprint
    if expected is not None and not (len(expected) >= 8 and identity.fingerprint.startswith(expected)):
        raise FingerprintMismatchError(step.name, expected, identity.fingerprint)
    if version_kind(identity.version) is not VersionKind.MUTABLE:
        for dep in step.deps:
            if specs[dep].version_kind is VersionKind.MUTABLE:
                raise MutableDependencyError(step.name, identity.version, specs[dep].label)
    kind = (
        StepKind.PIN
        if step.override_path is not None
        else StepKind.ADOPT
        if step.adopt_source is not None
        else StepKind.BUILD
    )
    return StepSpec(
        name=step.name,
        deps=tuple(specs[dep] for dep in step.deps),
        version=identity.version,
        override_output_path=step.override_path,
        fingerprint_payload=identity.payload,
        kind=kind,
        artifact_type=step.artifact_type,
        build_argument=_argument_builder(step, {dep: specs[dep] for dep in step.deps})
        if kind is StepKind.BUILD
        else None,
        function=step.run if kind is StepKind.BUILD else None,
        expected_fingerprint=expected,
        source=step.adopt_source or step.override_path,
        retry=step.retry,
        timeout_s=step.timeout_s,
        mirrored=step.mirrored,
    )


def _argument_builder(step: ArtifactStep[Any], deps: Mapping[ArtifactStep[Any], StepSpec]) -> Callable[[RunPaths], Any]:
    def build(paths: RunPaths) -> Any:
        references = {dep: dep.adopt_source or spec.path(paths.prefix) for dep, spec in deps.items()}
        return _build_config(step, StepContext(step, paths, references, is_fingerprint=False))

    return build


def materialized_config(handle: ArtifactStep[Any], prefix: str) -> Any:
    """The config that would run under a prefix, in canonical form, for golden tests.

    The output path stands for itself (not a staging folder) and the region is None.
    """
    spec = lower(handle)
    path = spec.path(prefix)
    return spec.argument(RunPaths(path, "<scratch_path>", path, prefix, None))


def recipe_drift(old_payload: str, step: ArtifactStep[Any]) -> list[str]:
    """How a handle's recipe differs from a stored payload, one line a field."""
    return describe_drift(old_payload, step.fingerprint_payload())


class _Placeholder:
    """A stand-in for a path that is known only while running."""

    __not_config__ = "is a placeholder; use it only as an input of apply()"

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


OUT = _Placeholder("OUT")
"""In the inputs of ``apply``: becomes the output path."""

SCRATCH = _Placeholder("SCRATCH")
"""In the inputs of ``apply``: becomes the scratch path."""


def _collect_handles(value: Any, found: dict[ArtifactStep[Any], None]) -> None:
    if isinstance(value, ArtifactStep):
        found[value] = None
    elif isinstance(value, dict):
        for item in value.values():
            _collect_handles(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect_handles(item, found)


def _substitute(value: Any, context: StepContext) -> Any:
    if isinstance(value, ArtifactStep):
        return context.artifact_path(value)
    if value is OUT:
        return context.output_path
    if value is SCRATCH:
        return context.scratch_path
    if isinstance(value, dict):
        return {key: _substitute(item, context) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_substitute(item, context) for item in value)
    return value


class _KeywordCall:
    """Calls a keyword function with a dict; keeps the function visible for ``remote`` and for code digests."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, inputs: dict[str, Any]) -> Any:
        return self.function(**inputs)


def apply[T: Artifact](
    name: str,
    fn: Callable[..., T | None],
    *,
    version: str | None = None,
    artifact_type: type[T] = Artifact,  # pyrefly: ignore[bad-function-definition]
    pin: str | None = None,
    **inputs: Any,
) -> ArtifactStep[T]:
    """A step from a keyword function: handles among its inputs become dependencies and resolve to paths.

    Args:
        name: Step name.
        fn: Called with the inputs as keywords; may be wrapped with ``remote``.
        version: As in ``ArtifactStep``.
        artifact_type: Class of the result.
        pin: Fingerprint that the recipe must have.
        inputs: Literals (identity), handles, ``OUT`` and ``SCRATCH``, also inside lists, tuples and dicts.
    Returns:
        The handle.
    Raises:
        InputBindingError: The inputs do not fit the function's signature.
    Example:
        >>> def count(source: str, out: str, minimum: int = 0) -> None: ...
        >>> raw = ArtifactStep.adopt("raw", "2026.12.01", "/data/raw")
        >>> apply("count", count, version="auto", source=raw, out=OUT, minimum=3).deps == (raw,)
        True
    """
    try:
        inspect.signature(fn).bind(**inputs)
    except TypeError as error:
        raise InputBindingError(name, f"inputs do not fit {getattr(fn, '__qualname__', fn)!r}: {error}") from None
    handles: dict[ArtifactStep[Any], None] = {}
    _collect_handles(inputs, handles)
    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=artifact_type,
        run=fn.rewrap(_KeywordCall) if hasattr(fn, "rewrap") else _KeywordCall(fn),
        build_config=lambda context: _substitute(inputs, context),
        deps=tuple(handles),
        expected_fingerprint=pin,
    )
