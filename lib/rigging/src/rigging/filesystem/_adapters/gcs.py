"""Compare-and-swap on Google Cloud Storage by generation preconditions.

Every stored object has a generation, a number that no other content under that name ever gets. An upload with
``ifGenerationMatch=0`` creates, with another number replaces; the server refuses with 412. Content and generation are
read in one request, so they belong together whatever happens meanwhile.

A refusal can be our own success: the server stored the object, the answer was lost, and the client's retry met its own
write. ``Lease`` recognises that by its content.

References:
    Google Cloud Storage documentation, "Request preconditions" and "Object versioning" (generation numbers).
"""

import functools
from typing import Any, Final

from rigging import _env
from rigging.errors import ConditionalWriteError, MissingExtraError
from rigging.filesystem._google_credentials import require_google_credentials
from rigging.filesystem._versioned import VersionedBytes

_ABSENT: Final = 404
_REFUSED: Final = 412
_TIMEOUT_S: Final = (30.0, 120.0)
_EMULATED_PROJECT: Final = "emulated"


@functools.cache
def gcs_client() -> Any:
    """Return this process's client; credentials are the application defaults, ``STORAGE_EMULATOR_HOST`` is honoured.

    Raises:
        MissingExtraError: The extra ``gcs`` is not installed.
        OSError: There are no credentials, or the file with them is broken.
    """
    try:
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage
    except ImportError as error:
        raise MissingExtraError("compare-and-swap on gs://", "gcs") from error
    require_google_credentials("gs://")
    try:
        # A project is needed to create and list buckets only; the client insists on one where it cannot ask.
        return storage.Client(project=_EMULATED_PROJECT if _env.GCS_EMULATOR.get() else None)
    except (DefaultCredentialsError, OSError) as error:
        raise OSError(f"no Google Cloud credentials: {error}") from error


class GcsConditionalObject:
    """One object with compare-and-swap; the version is its generation.

    Args:
        path: ``gs://bucket/key``.
        bucket: Name of the bucket.
        key: Key inside it.
    Raises:
        MissingExtraError: The extra ``gcs`` is not installed.
    """

    def __init__(self, path: str, bucket: str, key: str) -> None:
        self.path = path
        self._bucket = gcs_client().bucket(bucket)
        self._key = key

    def read(self) -> VersionedBytes | None:
        """Return the content and its generation; None when the object does not exist.

        Raises:
            OSError: The store refused or did not answer.
        """
        blob = self._bucket.blob(self._key)
        try:
            data = blob.download_as_bytes(timeout=_TIMEOUT_S)
        except _failures() as error:
            if _code(error) == _ABSENT:
                return None
            raise OSError(f"cannot read {self.path}: {error}") from error
        return VersionedBytes(data, str(blob.generation))

    def write(self, data: bytes, *, expected_version: str | None) -> str:
        """Replace the content if the stored generation matches (None: must not exist); return the new one.

        Raises:
            ConditionalWriteError: Another version is stored.
            OSError: The store refused or did not answer; a bucket that does not exist too.
        """
        return self._upload("upload_from_string", data, expected_version)

    def write_file(self, source: str, *, expected_version: str | None) -> str:
        """Replace the content by that of a local file, as ``write`` does; the file is read as it is sent.

        Raises:
            ConditionalWriteError: Another version is stored.
            FileNotFoundError: There is no such file.
            OSError: The store refused or did not answer.
        """
        return self._upload("upload_from_filename", source, expected_version)

    def _upload(self, method: str, content: bytes | str, expected_version: str | None) -> str:
        expected = _generation(expected_version)
        if expected is None:
            raise ConditionalWriteError(self.path, expected_version, self.version())
        blob = self._bucket.blob(self._key)
        try:
            getattr(blob, method)(
                content, content_type="application/octet-stream", if_generation_match=expected, timeout=_TIMEOUT_S
            )
        except _failures() as error:
            if _code(error) == _REFUSED:
                raise ConditionalWriteError(self.path, expected_version, self.version()) from error
            raise OSError(f"cannot write {self.path}: {error}") from error
        return str(blob.generation)

    def delete(self, *, expected_version: str) -> None:
        """Delete the object if the stored generation matches.

        The generation is also compared before the request: not every server honours the condition of a delete.

        Raises:
            ConditionalWriteError: Another version is stored, or none.
            OSError: The store refused or did not answer.
        """
        now = self.version()
        if now is None or now != expected_version:
            raise ConditionalWriteError(self.path, expected_version, now)
        try:
            self._bucket.blob(self._key).delete(if_generation_match=int(now), timeout=_TIMEOUT_S)
        except _failures() as error:
            if _code(error) in (_REFUSED, _ABSENT):
                raise ConditionalWriteError(self.path, expected_version, self.version()) from error
            raise OSError(f"cannot delete {self.path}: {error}") from error

    def version(self) -> str | None:
        """Return the generation alone; None when the object does not exist.

        Raises:
            OSError: The store refused or did not answer.
        """
        try:
            blob = self._bucket.get_blob(self._key, timeout=_TIMEOUT_S)
        except _failures() as error:
            raise OSError(f"cannot look at {self.path}: {error}") from error
        return None if blob is None else str(blob.generation)


def _generation(version: str | None) -> int | None:
    """The number for ``ifGenerationMatch``; None for a text that no generation can be."""
    if version is None:
        return 0
    return int(version) if version.isdecimal() and version != "0" else None


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    """What the client raises when the server refuses, does not answer, or nobody is authenticated."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    return GoogleAPIError, GoogleAuthError, RequestException


def _code(error: Exception) -> int:
    return int(getattr(error, "code", 0) or 0)


def gcs_location(bucket: str) -> str:
    """Return where a bucket lies, in lower case.

    Raises:
        MissingExtraError: The extra ``gcs`` is not installed.
        OSError: The store does not say.
    """
    client = gcs_client()
    try:
        return str(client.get_bucket(bucket, timeout=_TIMEOUT_S).location).lower()
    except _failures() as error:
        raise OSError(f"cannot tell where gs://{bucket} lies: {error}") from error
