"""Every error that rigging raises, in one tree.

A caller can catch the whole package (``RiggingError``), one concern (``LeaseError``) or the builtin that each class
also is, so code that knows nothing of rigging still does the right thing::

    RiggingError
    ├── SizeParseError                (ValueError)     a size such as "4g" cannot be read
    ├── ResourceError                 (ValueError)     a device, topology or resource request that cannot exist
    ├── JobIdentityError              (ValueError)     the job identity in the environment is incomplete or absurd
    ├── CanonicalJsonError            (ValueError)     a value has no canonical JSON text
    ├── SecretResolutionError         (RuntimeError)   no secret, or a source that is broken
    ├── ProvenanceError               (RuntimeError)   git state cannot be read, or nobody is logged in
    ├── MissingExtraError             (ImportError)    an optional integration is not installed
    ├── ConfigError                   (ValueError)     a configuration file is not what it should be
    ├── ConfigNotFoundError           (FileNotFoundError) a configuration that was named is nowhere
    ├── TelemetryError                (ValueError)     telemetry was set up wrongly
    ├── AuthError                     (ValueError)     root of what goes wrong with credentials
    │   ├── KeyFormatError            (ValueError)     a key is not an Ed25519 key in the expected form
    │   ├── TokenError                (ValueError)     a token may not be minted, or does not verify
    │   ├── NotAuthenticatedError     (ValueError)     nobody, or nobody whom the policy admits, is calling
    │   └── CredentialError           (ValueError)     a stored credential cannot be read, or must not be trusted
    ├── TransportError                (ValueError)     text is not a transport URL
    └── StorageError
        ├── StoragePathError          (ValueError)     text that is not a storage path, or a join that escapes it
        ├── DestinationExistsError    (FileExistsError) an atomic directory commit would mix two trees
        ├── ConditionalWriteError     (OSError)        compare-and-swap lost: somebody else wrote first
        ├── UnsupportedConditionalWrite (NotImplementedError) this store cannot compare and swap
        ├── MissingCredentials        (PermissionError) nothing that a store could admit us by
        ├── TransferBudgetExceeded    (RuntimeError)   a read from another region would pass the limit
        ├── CrossRegionPathError      (ValueError)     a setting names data in another region
        ├── TransferVerificationError (OSError)        a copy does not hold what its source held
        ├── UnsafePathError           (ValueError)     a name in a manifest or archive would escape or clash
        ├── ParquetFormatError        (ValueError)     a file is not Parquet, or is broken
        ├── StoreBusyError            (TimeoutError)   the lock around a conditional write did not come free
        └── LeaseError
            ├── LeaseHeldError        (BlockingIOError) somebody else holds the lease
            ├── LeaseLostError        (RuntimeError)   we held it, and no longer do
            └── LeaseFormatError      (ValueError)     the lease file is not a lease

Message form: ``what failed: name=value; expected ... . What to do.``  The values are attributes.
"""

from collections.abc import Sequence
from typing import Any


def _revive(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class RiggingError(Exception):
    """Root of every error that rigging raises on purpose.

    All of them can be pickled: the plain way would call ``__init__`` with the message alone, so the state travels
    instead.

    Example:
        >>> import pickle
        >>> pickle.loads(pickle.dumps(SizeParseError("4 lumps"))).text
        '4 lumps'
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


class SizeParseError(RiggingError, ValueError):
    """A human-written size such as ``"4g"`` could not be read."""

    def __init__(self, text: object) -> None:
        self.text = text
        super().__init__(
            f"cannot read a size: text={text!r}; expected a number with an optional binary unit such as "
            "'512m', '4g' or '1.5TiB'. Write the size that way or pass bytes as an int."
        )


class ResourceError(RiggingError, ValueError):
    """A resource request names something that does not exist or contradicts itself."""

    def __init__(self, field: str, value: object, expected: str, remedy: str = "Fix the resource request.") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"invalid resource request: {field}={value!r}; expected {expected}. {remedy}")


class JobIdentityError(RiggingError, ValueError):
    """The environment describes a job identity that cannot be true."""

    def __init__(self, variable: str, value: object, expected: str) -> None:
        self.variable = variable
        self.value = value
        self.expected = expected
        super().__init__(
            f"cannot read the job identity: {variable}={value!r}; expected {expected}. "
            "Unset the variable to run alone, or let the scheduler set the whole group."
        )


class CanonicalJsonError(RiggingError, ValueError):
    """A value has no canonical JSON text (NaN, a set, an object, a non-string key)."""

    def __init__(self, location: str, value: object, reason: str) -> None:
        self.location = location
        self.value = value
        self.reason = reason
        super().__init__(
            f"no canonical JSON: at={location}, type={type(value).__name__}, value={value!r:.120}; "
            f"expected {reason}. Convert the value before hashing it."
        )


class SecretResolutionError(RiggingError, RuntimeError):
    """A secret reference is malformed, its source is broken, or no source had it.

    Carries only the *category* of what was tried (``env``, ``file``), never a reference body or a value.
    """

    def __init__(
        self, reason: str, *, tried: Sequence[str] = (), remedy: str = "Check the secret's configuration."
    ) -> None:
        self.reason = reason
        self.tried = tuple(tried)
        shown = f"; tried={list(self.tried)}" if self.tried else ""
        super().__init__(f"cannot resolve a secret: {reason}{shown}. {remedy}")


class ProvenanceError(RiggingError, RuntimeError):
    """The git state, or the name of the person who runs this, cannot be established."""

    def __init__(self, what: str, detail: str, remedy: str) -> None:
        self.what = what
        self.detail = detail
        super().__init__(f"cannot establish provenance: {what}; {detail}. {remedy}")


class MissingExtraError(RiggingError, ImportError):
    """An optional integration was asked for but its packages are not installed.

    Example:
        >>> print(MissingExtraError("s3:// storage", "s3"))
        an optional integration is missing: ... Run: pip install 'marin-rigging[s3]'
    """

    def __init__(self, feature: str, extra: str, distribution: str = "marin-rigging") -> None:
        self.feature = feature
        self.extra = extra
        self.distribution = distribution
        super().__init__(
            f"an optional integration is missing: feature={feature!r}; expected the extra {extra!r} to be installed. "
            f"Run: pip install '{distribution}[{extra}]'"
        )


class ConfigError(RiggingError, ValueError):
    """A configuration file or value is not what it should be."""

    def __init__(self, where: str, problem: str, expected: str) -> None:
        self.where = where
        self.problem = problem
        self.expected = expected
        super().__init__(f"bad configuration: where={where!r}, {problem}; expected {expected}. Fix the file.")


class ConfigNotFoundError(RiggingError, FileNotFoundError):
    """A configuration that was asked for by name is in none of the folders that were searched."""

    def __init__(self, name: str, searched: Sequence[str], known: Sequence[str]) -> None:
        self.name = name
        self.searched = tuple(searched)
        self.known = tuple(known)
        super().__init__(
            f"no such configuration: name={name!r}, searched={list(searched)}; expected one of {list(known)}. "
            "Check the name, or put <name>.yaml into one of these folders."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class TelemetryError(RiggingError, ValueError):
    """Telemetry was set up with something that cannot be."""

    def __init__(self, what: str, value: object, expected: str) -> None:
        self.what = what
        self.value = value
        self.expected = expected
        super().__init__(f"cannot set telemetry up: {what}={value!r}; expected {expected}. Fix the call.")


class AuthError(RiggingError, ValueError):
    """Root of what goes wrong with keys, tokens and credentials. No message holds a token or a key."""


class KeyFormatError(AuthError):
    """A key is not an Ed25519 key in the expected form."""

    def __init__(self, what: str, problem: str) -> None:
        self.what = what
        self.problem = problem
        super().__init__(
            f"bad key: {what}, {problem}; expected an Ed25519 key in that form. "
            "Make one with rigging.token_authority.generate_ed25519_keypair()."
        )


class TokenError(AuthError):
    """A token may not be minted that way, or does not verify."""

    def __init__(self, reason: str, expected: str, remedy: str = "Get a new token from its issuer.") -> None:
        self.reason = reason
        self.expected = expected
        super().__init__(f"token refused: {reason}; expected {expected}. {remedy}")


class NotAuthenticatedError(AuthError):
    """There is no verified identity where one is required."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"not authenticated: {reason}; expected a caller that the policy admits. Send a valid token.")


class CredentialError(AuthError):
    """A stored credential cannot be read, or must not be trusted."""

    def __init__(self, path: str, problem: str, expected: str, remedy: str) -> None:
        self.path = path
        self.problem = problem
        self.expected = expected
        super().__init__(f"bad credential file: path={path!r}, {problem}; expected {expected}. {remedy}")


class TransportError(RiggingError, ValueError):
    """Text is not a transport URL, or a transport cannot be used that way."""

    def __init__(self, transport: str, expected: str, remedy: str = "Fix the transport.") -> None:
        self.transport = transport
        self.expected = expected
        super().__init__(f"bad transport: transport={transport!r}; expected {expected}. {remedy}")


class StorageError(RiggingError):
    """Root of the errors of ``rigging.filesystem``."""


class StoragePathError(StorageError, ValueError):
    """Text is not a storage path, or an operation would leave the path it starts from."""

    def __init__(self, operation: str, path: object, expected: str) -> None:
        self.operation = operation
        self.path = path
        self.expected = expected
        super().__init__(
            f"bad storage path: operation={operation}, path={str(path)!r}; expected {expected}. Fix the path."
        )


class DestinationExistsError(StorageError, FileExistsError):
    """A directory cannot be put in place atomically because something is already there."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"cannot commit a directory: path={path!r} already exists; expected {reason}. "
            "Remove the old directory first or choose another path."
        )


class ConditionalWriteError(StorageError, OSError):
    """Compare-and-swap lost: the stored version is not the expected one.

    Example:
        >>> raise ConditionalWriteError("/ledger", expected_version="1", actual_version="2")
        Traceback (most recent call last):
            ...
        rigging.errors.ConditionalWriteError: conditional write refused: ...
    """

    def __init__(self, path: str, expected_version: str | None, actual_version: str | None) -> None:
        self.path = path
        self.expected_version = expected_version
        self.actual_version = actual_version
        super().__init__(
            f"conditional write refused: path={path!r}, stored version={actual_version!r}; "
            f"expected version={expected_version!r} (None means: must not exist). Read again and retry."
        )


class UnsupportedConditionalWrite(StorageError, NotImplementedError):
    """The store behind a path offers no compare-and-swap, and we will not pretend that it does."""

    def __init__(self, path: str, scheme: str) -> None:
        self.path = path
        self.scheme = scheme
        super().__init__(
            f"no conditional writes on this store: path={path!r}, scheme={scheme!r}; expected a local path, "
            "s3:// or gs://. Put the object on a store that can compare and swap."
        )


class MissingCredentials(StorageError, PermissionError):
    """A store is asked for something, and this process has nothing that it could be admitted by.

    Example:
        >>> print(MissingCredentials("gs://example-bucket/a", "no file, no metadata server", "gcloud auth login"))
        cannot ask a store: path='gs://example-bucket/a', no file, no metadata server; expected ... Try: gcloud auth...
    """

    def __init__(self, path: str, tried: str, remedy: str) -> None:
        self.path = path
        self.tried = tried
        self.remedy = remedy
        super().__init__(f"cannot ask a store: path={path!r}, {tried}; expected one of them. Try: {remedy}.")


class TransferBudgetExceeded(StorageError, RuntimeError):
    """A read from another region would pass the limit; it was refused and not counted."""

    def __init__(self, bytes_used: int, attempted: int, limit: int, path: str) -> None:
        self.bytes_used = bytes_used
        self.attempted = attempted
        self.limit = limit
        self.path = path
        super().__init__(
            f"cross-region read refused: path={path!r}, attempted={attempted} bytes, used={bytes_used} bytes; expected "
            f"at most {limit} bytes in this process. Read a copy in this region, raise MARIN_MIRROR_BUDGET_GB, or set "
            "MARIN_I_WILL_PAY_FOR_ALL_FEES=1."
        )


class CrossRegionPathError(StorageError, ValueError):
    """A setting names data that lies in another region than the job."""

    def __init__(self, where: str, path: str, region: str, expected_region: str) -> None:
        self.where = where
        self.path = path
        self.region = region
        self.expected_region = expected_region
        super().__init__(
            f"data in another region: setting={where!r}, path={path!r}, region={region!r}; expected "
            f"{expected_region!r}. Name a copy in that region (rigging.filesystem.mirror makes one), or run there."
        )


class TransferVerificationError(StorageError, OSError):
    """A copy does not hold what its source held; the copy was removed."""

    def __init__(self, source: str, target: str, expected: str, actual: str) -> None:
        self.source = source
        self.target = target
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"copy does not match: source={source!r}, target={target!r}, got {actual}; expected {expected}. "
            "Copy again; if it repeats, check the disk and whether somebody writes to the source."
        )


class UnsafePathError(StorageError, ValueError):
    """A relative name from a manifest, archive or request would escape its folder or clash with another."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(
            f"unsafe relative path: name={name!r}, {reason}; expected a plain relative POSIX path such as "
            "'data/part-0.parquet'. Refuse the input that names it."
        )


class ParquetFormatError(StorageError, ValueError):
    """A file is not Parquet, or is broken."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(
            f"not a Parquet file: path={path!r}, {problem}; expected a Parquet footer. Use cat --raw for other files."
        )


class StoreBusyError(StorageError, TimeoutError):
    """The lock that serialises conditional writes of one object did not come free in time."""

    def __init__(self, path: str, waited_s: float) -> None:
        self.path = path
        self.waited_s = waited_s
        super().__init__(
            f"conditional write lock is busy: path={path!r}, waited_s={waited_s:.1f}; expected it to be free within "
            "milliseconds. Look for a stopped or hung process that has the lock file open (`fuser <lock file>`)."
        )


class LeaseError(StorageError):
    """Root of the errors of a lease."""


class LeaseHeldError(LeaseError, BlockingIOError):
    """The lease is held by somebody who looks alive."""

    def __init__(self, path: str, holder: str, epoch: int, reason: str) -> None:
        self.path = path
        self.holder = holder
        self.epoch = epoch
        self.reason = reason
        super().__init__(
            f"lease is held: path={path!r}, holder={holder}, epoch={epoch}, because {reason}; expected it to be free. "
            "Wait for the holder to finish, or stop it."
        )


class LeaseLostError(LeaseError, RuntimeError):
    """We held the lease and no longer do: every effect from here on must be given up.

    Example:
        >>> isinstance(LeaseLostError("/lease", 3, "another took it"), RuntimeError)
        True
    """

    def __init__(self, path: str, epoch: int | None, reason: str) -> None:
        self.path = path
        self.epoch = epoch
        self.reason = reason
        super().__init__(
            f"lease lost: path={path!r}, our epoch={epoch}, because {reason}; expected to be the holder. "
            "Stop writing; whoever holds the lease now will do the work."
        )


class LeaseFormatError(LeaseError, ValueError):
    """The lease file does not hold a lease, so nobody can tell who owns what."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"not a lease file: path={path!r}, {reason}; expected JSON with holder, epoch and heartbeat_at. "
            "Check that nothing else writes there; delete the file only when no holder can be alive."
        )
