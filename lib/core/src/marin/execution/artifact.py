"""Artifacts: what a step returns, as a typed handle on a committed folder.

An artifact class declares its *result fields*; they are stored in the record and come back typed. Everything big
lives in files under ``path``::

    class TokenCache(Artifact):
        tokenizer: str
        num_tokens: int = 0

Subclasses become frozen dataclasses by themselves. ``volatile`` lists files whose bytes may differ between equal runs
(logs, timings): they are in the manifest, with their digest, but not in ``content_digest``. ``evidence`` lists what
is kept of a *failed* attempt.
"""

import dataclasses
import functools
import os
import typing
from typing import Any, ClassVar, Self

from marin.errors import ArtifactTypeMismatchError, RecordNotFoundError
from marin.execution._codec import dataclass_from_json, to_json
from marin.execution._files import exists
from marin.execution.fingerprint import type_name
from marin.execution.records import ArtifactRecord, read_record


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class _ArtifactBase:
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Artifact(_ArtifactBase):
    """A committed output. Subclass it and declare result fields.

    Attributes:
        path: Folder of the committed output; set by the engine.
        volatile: Patterns of files that do not enter ``content_digest`` (``*`` within a folder, ``**`` across).
        evidence: Patterns of files kept of failed attempts.
        purpose: What a step that makes this does with its inputs, as a kind of a policy: ``train``, ``eval``,
            ``redistribute``; empty for plain data processing, which no policy restricts.
    Example:
        >>> class Count(Artifact):
        ...     documents: int
        >>> Count(documents=3).result_payload()
        {'documents': 3}
    """

    path: str = ""
    volatile: ClassVar[tuple[str, ...]] = ("logs/**",)
    evidence: ClassVar[tuple[str, ...]] = ("logs/**", "metrics/**", "metrics*.jsonl")
    purpose: ClassVar[str] = ""

    @functools.cached_property
    def record(self) -> ArtifactRecord | None:
        """The record beside the data, or None for data that has none (a pin)."""
        return read_record(self.path)

    def file(self, *parts: str) -> str:
        """Path of something inside the output."""
        return os.path.join(self.path, *parts)

    def result_payload(self) -> dict[str, Any]:
        """Declared fields except ``path``, as JSON values.

        Raises:
            ArtifactFieldError: A value cannot be stored.
        """
        owner = type_name(type(self))
        return {
            item.name: to_json(getattr(self, item.name), owner=owner, field=item.name)
            for item in dataclasses.fields(self)  # pyrefly: ignore[bad-argument-type]
            if item.name != "path"
        }

    @classmethod
    def load(cls, path: str) -> Self:
        """Open a committed output as this type.

        Args:
            path: The output folder.
        Returns:
            The artifact; fields that the record holds and the class does not are ignored.
        Raises:
            ArtifactTypeMismatchError: The record names another type (and this class is not plain ``Artifact``).
            ArtifactFieldError: A field without a default is not in the record.
            RecordNotFoundError: There is neither a record nor a folder.
        """
        record = read_record(path)
        if record is None:
            if not exists(path):
                raise RecordNotFoundError(path, "there is nothing at this path")
            return dataclass_from_json(cls, {}, owner=type_name(cls), path=path)
        wanted = type_name(cls)
        if record.result_type and record.result_type != wanted and cls is not Artifact:
            raise ArtifactTypeMismatchError(path, wanted, record.result_type)
        location = record.output_path if record.source else path
        return dataclass_from_json(cls, record.result or {}, owner=wanted, path=location)
