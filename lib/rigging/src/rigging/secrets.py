"""Find a secret by reference, without ever writing it down.

Configuration names *where* a secret lives (``env:HF_TOKEN``, ``file:/var/run/secrets/hf_token``), never the secret. A
spec is an ordered list of such references; the first that is present wins. The important rule: *absent* moves on to
the next reference, *broken* (no permission, a directory, undecodable, empty) stops at once, so a misconfigured strong
source never falls through to a weaker one.

Kubernetes needs no scheme of its own: there a secret arrives as an environment variable or a projected file.
"""

import base64
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rigging import _env
from rigging._adapters import google_auth
from rigging.errors import MissingExtraError, SecretResolutionError
from rigging.hashing import crc32c
from rigging.redaction import REDACTED_VALUE
from rigging.timing import Clock, SystemClock

logger = logging.getLogger(__name__)

SecretSpec = tuple[str, ...]

_SCHEMES: Final = ("env", "file", "gcp-secret")
GCP_TTL_S: Final = 300.0
_GCP_TIMEOUT_S: Final = 30.0
_SECRET_MANAGER_URL: Final = "https://secretmanager.googleapis.com"
_GCP_NAME: Final = re.compile(r"projects/[A-Za-z0-9.:_-]+/secrets/[A-Za-z0-9_-]+/versions/[A-Za-z0-9_-]+")
_ANY_SCHEME = re.compile(r"^[a-z0-9+-]+:")


@dataclass(frozen=True, slots=True)
class ResolvedSecret:
    """A secret and the reference that won. The value stays out of ``repr``."""

    value: str = field(repr=False)
    source: str


def as_secret_spec(spec: str | Sequence[str]) -> SecretSpec:
    """Return a spec as a tuple; a bare string becomes a 1-tuple.

    Example:
        >>> as_secret_spec("env:HF_TOKEN")
        ('env:HF_TOKEN',)
    """
    return (spec,) if isinstance(spec, str) else tuple(spec)


def is_secret_reference(value: object) -> bool:
    """Tell whether ``value`` is a text that begins with a known scheme.

    Example:
        >>> is_secret_reference("env:HF_TOKEN"), is_secret_reference("hunter2")
        (True, False)
    """
    return isinstance(value, str) and value.partition(":")[0] in _SCHEMES and ":" in value


def default_secret_spec(field_name: str, *, env_prefix: str, secrets_dir: str) -> SecretSpec:
    """Return where a secret lives by convention: ``<PREFIX>_<FIELD>`` in the environment, then ``<dir>/<field>``.

    Example:
        >>> default_secret_spec("api_key", env_prefix="DUCKY", secrets_dir="/run/secrets")
        ('env:DUCKY_API_KEY', 'file:/run/secrets/api_key')
    """
    return (f"env:{env_prefix}_{field_name.upper()}", f"file:{secrets_dir.rstrip('/')}/{field_name}")


def resolve_secret_spec(spec: str | Sequence[str]) -> ResolvedSecret:
    """Walk the references in order and return the first secret that is present.

    Args:
        spec: References ``env:NAME`` (or ``env://NAME``), ``file:/abs/path`` (or ``file:///abs/path``) and
            ``gcp-secret://projects/P/secrets/N/versions/V``.
    Returns:
        The stripped value and its reference.
    Raises:
        SecretResolutionError: Empty spec, a literal or unknown scheme, a broken source, an empty value, or none
            present. A ``gcp-secret:`` reference without the extra ``secrets`` too: skipping it would fall through to a
            weaker source.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "token")
        >>> resolve_secret_spec(["env:NO_SUCH_VARIABLE", "file:" + path])
        Traceback (most recent call last):
            ...
        rigging.errors.SecretResolutionError: cannot resolve a secret: no source had it; tried=['env', 'file']. ...
        >>> with open(path, "w") as stream:
        ...     _ = stream.write("s3cret\\n")
        >>> resolve_secret_spec(["env:NO_SUCH_VARIABLE", "file:" + path]).value
        's3cret'
    """
    references = as_secret_spec(spec)
    if not references:
        raise SecretResolutionError("the spec is empty", remedy="Give at least one reference such as env:NAME.")
    for reference in references:
        scheme, body = _split_reference(reference)
        value = _SOURCES[scheme](body)
        if value is None:
            continue
        if not value.strip():
            # An empty key would sign and authenticate; refuse it here, where the cause is still known.
            raise SecretResolutionError(f"the {scheme} source holds an empty value", remedy="Set it or remove it.")
        logger.debug("secret resolved from a %s reference", scheme)
        return ResolvedSecret(value.strip(), reference)
    tried = [_split_reference(reference)[0] for reference in references]
    raise SecretResolutionError("no source had it", tried=tried, remedy="Set one of the sources that the spec names.")


def resolve_config_secrets(tree: object) -> tuple[object, object]:
    """Resolve every secret reference in a nested configuration.

    Args:
        tree: Nested dicts, lists and tuples; strings that are references are resolved.
    Returns:
        ``(resolved, redacted)``: the tree with values, and a copy that is safe to log.
    Raises:
        SecretResolutionError: A reference in the tree cannot be resolved.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "key")
        >>> with open(path, "w") as stream:
        ...     _ = stream.write("s3cret")
        >>> resolve_config_secrets({"key": "file:" + path, "port": 80})
        ({'key': 's3cret', 'port': 80}, {'key': '[REDACTED]', 'port': 80})
    """
    if is_secret_reference(tree):
        assert isinstance(tree, str)
        return resolve_secret_spec(tree).value, REDACTED_VALUE
    if isinstance(tree, dict):
        pairs = {key: resolve_config_secrets(value) for key, value in tree.items()}
        return {k: v[0] for k, v in pairs.items()}, {k: v[1] for k, v in pairs.items()}
    if isinstance(tree, list | tuple):
        items = [resolve_config_secrets(item) for item in tree]
        return type(tree)(item[0] for item in items), type(tree)(item[1] for item in items)
    return tree, tree


def _split_reference(reference: str) -> tuple[str, str]:
    scheme, _, body = reference.partition(":")
    if scheme in _SCHEMES and _ANY_SCHEME.match(reference):
        if body.startswith("//"):
            body = body[2:]
        return scheme, body
    if _ANY_SCHEME.match(reference):
        raise SecretResolutionError(f"unknown scheme {scheme!r}", remedy="Use env:NAME or file:/absolute/path.")
    raise SecretResolutionError(
        "a literal stands where a reference belongs", remedy="Put the secret into a variable or file and name that."
    )


def _from_env(name: str) -> str | None:
    if not name:
        raise SecretResolutionError("an env reference without a name", remedy="Write env:NAME.")
    return _env.read(name)


def _from_file(path: str) -> str | None:
    if not path.startswith("/"):
        raise SecretResolutionError("a file reference that is not absolute", remedy="Write file:/absolute/path.")
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the file source is broken ({type(error).__name__})"
        raise SecretResolutionError(reason, remedy="Fix the file's type, permission or encoding.") from None


def _from_gcp(body: str) -> str | None:
    if not _GCP_NAME.fullmatch(body):
        raise SecretResolutionError(
            "a gcp-secret reference without project, secret and version",
            remedy="Write gcp-secret://projects/P/secrets/N/versions/V.",
        )
    return _gcp_cache.get(body)


class _GcpCache:
    """Answers of Secret Manager, kept for a while: a service that resolves at each request must not ask each time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, str | None]] = {}

    def get(self, name: str) -> str | None:
        with self._lock:
            kept = self._kept.get(name)
            now_s = self.clock.monotonic()
            if kept is not None and now_s < kept[0]:
                return kept[1]
            value = _ask_secret_manager(name)  # failures are not kept
            self._kept[name] = (now_s + GCP_TTL_S, value)
            return value

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


_gcp_cache: Final = _GcpCache(SystemClock())


def reset_secret_cache() -> None:
    """Forget what Secret Manager said, as after the rotation of a secret, and the credentials it was asked with."""
    _gcp_cache.clear()
    google_auth.reset_session()


def _ask_secret_manager(name: str) -> str | None:
    """Return a secret's text; None when there is no such secret or version.

    References:
        Secret Manager REST API, ``projects.secrets.versions.access``.
    """
    base = (_env.SECRET_MANAGER.get() or _SECRET_MANAGER_URL).rstrip("/")
    try:
        payload = google_auth.get_json(f"{base}/v1/{name}:access", _GCP_TIMEOUT_S)["payload"]
        data = base64.b64decode(payload["data"], validate=True)
        if "dataCrc32c" in payload and int(payload["dataCrc32c"]) != crc32c(data):
            raise SecretResolutionError("the gcp-secret source answered with damaged data", remedy="Try again.")
        return data.decode()
    except MissingExtraError as error:
        raise SecretResolutionError(
            "the gcp-secret source needs the extra 'secrets'", remedy="Run: pip install 'marin-rigging[secrets]'"
        ) from error
    except google_auth.GoogleRequestError as error:
        if error.status == 404:
            return None
        raise SecretResolutionError(
            f"the gcp-secret source failed ({error.status or 'no answer'})", remedy="Check credentials and permission."
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise SecretResolutionError(
            f"the gcp-secret source answered with something else ({type(error).__name__})", remedy="Check the secret."
        ) from None


_SOURCES: Final[dict[str, Callable[[str], str | None]]] = {
    "env": _from_env,
    "file": _from_file,
    "gcp-secret": _from_gcp,
}
