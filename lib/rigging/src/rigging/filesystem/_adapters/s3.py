"""Compare-and-swap on S3 and on stores that speak its protocol, by conditional requests.

``PutObject`` with ``If-None-Match: *`` creates, with ``If-Match: <ETag>`` replaces. The server refuses with 412,
or with 409 while another conditional write of the same key is under way. Conditions are parameters of each request, so
threads can share one client.

A refusal can be our own success: the server stored the object, the answer was lost, and the client's retry met its own
write. ``Lease`` recognises that by its content.

References:
    Amazon S3 user guide, "Prevent object overwrites with conditional writes" and "Conditional deletes".
"""

import functools
from typing import Any, BinaryIO, Final

from rigging.errors import ConditionalWriteError, MissingExtraError
from rigging.filesystem._versioned import VersionedBytes

_REFUSED: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_ABSENT: Final = frozenset({"NoSuchKey", "404"})


@functools.cache
def s3_client() -> Any:
    """Return this process's S3 client; endpoint, region and credentials come from the AWS variables and files.

    Timeouts are bounded, for a dead connection must not hang a job.

    Raises:
        MissingExtraError: The extra ``s3`` is not installed.
    """
    try:
        import botocore.config
        import botocore.session
    except ImportError as error:
        raise MissingExtraError("compare-and-swap on s3://", "s3") from error
    config = botocore.config.Config(
        connect_timeout=30, read_timeout=120, retries={"max_attempts": 5, "mode": "standard"}
    )
    return botocore.session.get_session().create_client("s3", config=config)


class S3ConditionalObject:
    """One S3 object with compare-and-swap; the version is its ETag.

    Args:
        path: ``s3://bucket/key``.
        bucket: Name of the bucket.
        key: Key inside it.
    Raises:
        MissingExtraError: The extra ``s3`` is not installed.
    """

    def __init__(self, path: str, bucket: str, key: str) -> None:
        self.path = path
        self._where = {"Bucket": bucket, "Key": key}
        self._client = s3_client()
        self._failures = _client_failures()

    def read(self) -> VersionedBytes | None:
        """Return the content and its ETag; None when the object does not exist."""
        try:
            answer = self._client.get_object(**self._where)
        except self._failures as error:
            if _code(error) in _ABSENT:
                return None
            raise OSError(f"cannot read {self.path}: {error}") from error
        with answer["Body"] as body:
            return VersionedBytes(body.read(), answer["ETag"])

    def write(self, data: bytes, *, expected_version: str | None) -> str:
        """Replace the content if the stored ETag matches (None: must not exist); return the new one.

        Raises:
            ConditionalWriteError: Another version is stored.
            OSError: The store refused or did not answer.
        """
        return self._put(data, expected_version)

    def write_file(self, source: str, *, expected_version: str | None) -> str:
        """Replace the content by that of a local file, as ``write`` does; the file is read as it is sent.

        One request, so at most 5 GiB.

        Raises:
            ConditionalWriteError: Another version is stored.
            FileNotFoundError: There is no such file.
            OSError: The store refused or did not answer.
        """
        with open(source, "rb") as stream:
            return self._put(stream, expected_version)

    def _put(self, body: bytes | BinaryIO, expected_version: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if expected_version is None else {"IfMatch": expected_version}
        try:
            return self._client.put_object(**self._where, Body=body, **condition)["ETag"]
        except self._failures as error:
            if _code(error) in _REFUSED | _ABSENT:
                raise ConditionalWriteError(self.path, expected_version, self.version()) from error
            raise OSError(f"cannot write {self.path}: {error}") from error

    def delete(self, *, expected_version: str) -> None:
        """Delete the object if the stored ETag matches.

        The version is also compared before the request: not every server honours the condition of a delete.

        Raises:
            ConditionalWriteError: Another version is stored, or none.
            OSError: The store refused or did not answer.
        """
        now = self.version()
        if now != expected_version:
            raise ConditionalWriteError(self.path, expected_version, now)
        try:
            self._client.delete_object(**self._where, IfMatch=expected_version)
        except self._failures as error:
            if _code(error) in _REFUSED | _ABSENT:
                raise ConditionalWriteError(self.path, expected_version, self.version()) from error
            raise OSError(f"cannot delete {self.path}: {error}") from error

    def version(self) -> str | None:
        """Return the ETag alone; None when the object does not exist.

        Raises:
            OSError: The store refused or did not answer.
        """
        try:
            return self._client.head_object(**self._where)["ETag"]
        except self._failures as error:
            if _code(error) in _ABSENT:
                return None
            raise OSError(f"cannot look at {self.path}: {error}") from error


def _client_failures() -> tuple[type[Exception], ...]:
    """What the client raises: answers that are errors, and everything that keeps it from getting an answer."""
    import botocore.exceptions

    return (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError)


def s3_location(bucket: str) -> str:
    """Return the region of a bucket.

    Raises:
        MissingExtraError: The extra ``s3`` is not installed.
        OSError: The store does not say.
    """
    client = s3_client()
    try:
        # The first region of all is called nothing.
        return client.get_bucket_location(Bucket=bucket).get("LocationConstraint") or "us-east-1"
    except client.exceptions.ClientError as error:
        raise OSError(f"cannot tell where s3://{bucket} lies: {error}") from error


def _code(error: Any) -> str:
    """Code of an error answer; empty where there was no answer (no credentials, no connection, a timeout)."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
