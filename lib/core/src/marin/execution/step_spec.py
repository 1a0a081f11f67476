"""The lowered form of a step: plain data that the runner executes.

Typed handles (``ArtifactStep``) lower to this. It can also be written by hand, with a function of the output path and
``hash_attrs`` as its identity; its address is then ``name_<hash>`` and holds no bucket, host or time, so it is the same
under every prefix.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rigging.resources import ResourceConfig

from marin.execution.artifact import Artifact
from marin.execution.failures import RetryPolicy
from marin.execution.fingerprint import DISPLAY_DIGITS, canonical_payload, fingerprint_of
from marin.execution.layout import store_join
from marin.execution.secret_fields import refuse_secrets
from marin.execution.versions import VersionKind, validate_name, version_kind


class StepKind(StrEnum):
    """How a step comes by its output."""

    BUILD = "build"
    PIN = "pin"
    ADOPT = "adopt"


@dataclass(frozen=True)
class RunPaths:
    """Where one attempt reads and writes.

    Attributes:
        output_path: Staging folder, to be written.
        scratch_path: Folder that survives failed attempts of the same recipe.
        final_path: Where the output will be after commit.
        prefix: Root of the store.
        region: Region of the process, or None.
    """

    output_path: str
    scratch_path: str
    final_path: str
    prefix: str
    region: str | None = None


@dataclass(frozen=True, eq=False)
class StepSpec:
    """One executable step; compared and hashed by identity.

    Attributes:
        name: Path of the step under the store.
        fn: Function of the output path, for hand-written specs.
        deps: Steps whose outputs it reads.
        hash_attrs: JSON-like identity of a hand-written spec.
        version: Version of a lowered handle; None addresses by hash.
        override_output_path: Another place for the output, absolute or under the prefix.
        fingerprint_payload: Canonical text of the recipe; derived from ``hash_attrs`` when absent.
        resources: Run the body as a job with these resources instead of in this process.
        artifact_type: Class of the returned artifact.
        build_argument: Makes the body's argument from the paths of an attempt.
        function: The body, called with that argument.
        expected_fingerprint: Recipe that the author pinned.
        source: Existing data of a pin or an adoption.
        retry: Which failure categories are tried again at once.
        timeout_s: Longest time of one attempt, in seconds.
        mirrored: Take a complete output of the same recipe over from another store of the run.
    Example:
        >>> step = StepSpec(name="tokens", fn=print, hash_attrs={"vocab": 4096})
        >>> step.name_with_hash.startswith("tokens_")
        True
    """

    name: str
    fn: Callable[[str], Any] | None = None
    deps: Sequence["StepSpec"] = ()
    hash_attrs: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    override_output_path: str | None = None
    fingerprint_payload: str | None = None
    resources: ResourceConfig | None = None
    kind: StepKind = StepKind.BUILD
    artifact_type: type[Artifact] = Artifact
    build_argument: Callable[[RunPaths], Any] | None = None
    function: Callable[[Any], Any] | None = None
    expected_fingerprint: str | None = None
    source: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float | None = None
    mirrored: bool = False

    def __post_init__(self) -> None:
        """Check the name.

        Raises:
            InvalidNameError: The name cannot become a path.
        """
        validate_name(self.name)

    @functools.cached_property
    def payload(self) -> str:
        """Canonical text of the recipe."""
        if self.fingerprint_payload is not None:
            return self.fingerprint_payload
        identity = {
            "name": self.name,
            "attrs": dict(self.hash_attrs),
            "deps": sorted(dep.address for dep in self.deps),
        }
        payload = canonical_payload(identity, step=self.name)
        refuse_secrets(payload, self.name)
        return payload

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the payload."""
        return fingerprint_of(self.payload)

    @property
    def hash_id(self) -> str:
        """The short hash in the address of a hand-written spec: 16 hex digits."""
        return self.fingerprint[: 2 * DISPLAY_DIGITS]

    @property
    def name_with_hash(self) -> str:
        """``name_<hash>``."""
        return f"{self.name}_{self.hash_id}"

    @property
    def address(self) -> str:
        """Path below the prefix: ``name/version``, or ``name_<hash>``."""
        return f"{self.name}/{self.version}" if self.version is not None else self.name_with_hash

    @property
    def label(self) -> str:
        """What people call it: ``name@version``, or ``name_<hash>``."""
        return f"{self.name}@{self.version}" if self.version is not None else self.name_with_hash

    @property
    def version_kind(self) -> VersionKind:
        """What may happen to an output that exists; an address by hash is fixed."""
        return version_kind(self.version, step=self.name) if self.version is not None else VersionKind.FIXED

    def path(self, prefix: str) -> str:
        """Where the output lies under a prefix."""
        target = self.override_output_path if self.override_output_path is not None else self.address
        return store_join(prefix, target)

    def argument(self, paths: RunPaths) -> Any:
        """The argument of the body for one attempt."""
        return self.build_argument(paths) if self.build_argument is not None else paths.output_path

    @property
    def purpose(self) -> str:
        """What it does with its inputs, as a kind of a policy; empty for plain data processing."""
        purpose = getattr(self.artifact_type, "purpose", "")
        return purpose if isinstance(purpose, str) else ""

    @property
    def body(self) -> Callable[[Any], Any] | None:
        """The body, or None for a pin or an adoption."""
        return self.function if self.function is not None else self.fn
