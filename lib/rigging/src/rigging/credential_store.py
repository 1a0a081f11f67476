"""Credentials of a user, one file a cluster, for nobody else to read.

``~/.config/marin/credentials/<cluster>.json``, mode 0600 in a folder of mode 0700. A file that others may read is not
trusted: it is an error that says how to repair it. Look-up order of ``credentials_for``: the variable
``MARIN_CLUSTER_TOKEN``, the file, nothing.
"""

import json
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rigging import _env
from rigging.auth import (
    APP_HEADER,
    EDGE_HEADER,
    BearerTokenInjector,
    StaticTokenProvider,
    TokenProvider,
    write_private,
)
from rigging.errors import CredentialError

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """What is kept for one cluster. Tokens stay out of ``repr``."""

    cluster: str
    endpoint: str
    edge_refresh_token: str | None = field(default=None, repr=False)
    app_token: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


def credentials_folder() -> str:
    """Return the folder of credential files."""
    return os.path.join(_env.config_home(), "marin", "credentials")


def credential_path(cluster: str) -> str:
    """Return the file of a cluster.

    Raises:
        CredentialError: A name that is no plain file name.

    Example:
        >>> credential_path("staging").endswith("/marin/credentials/staging.json")
        True
    """
    if not _NAME.fullmatch(cluster):
        expected = "letters, digits, '.', '_' and '-', not '.' first"
        raise CredentialError(cluster, "it is no name of a cluster", expected, "Choose another name.")
    return os.path.join(credentials_folder(), f"{cluster}.json")


def save_credentials(record: CredentialRecord) -> str:
    """Keep a record; return the path of its file.

    Raises:
        CredentialError: A name that is no plain file name.
        OSError: The file cannot be written; what was there stands.
    """
    path = credential_path(record.cluster)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.chmod(os.path.dirname(path), 0o700)
    write_private(path, json.dumps({**asdict(record), "metadata": dict(record.metadata)}, indent=2, sort_keys=True))
    return path


def load_credentials(cluster: str) -> CredentialRecord | None:
    """Return the record of a cluster; None when there is none.

    Raises:
        CredentialError: Others may read or write the file, or it is no record of this cluster.
    """
    path = credential_path(cluster)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CredentialError(path, f"it cannot be opened ({error.strerror})", "a plain file", "Log in anew.") from None
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if stat.S_IMODE(mode) & 0o077:
            problem = f"others may use it (mode {stat.S_IMODE(mode):04o})"
            raise CredentialError(path, problem, "mode 0600", f"Run: chmod 600 {path}, and get a new token.")
        try:
            record = _parse(json.load(stream))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CredentialError(path, "it holds no record", "what save_credentials writes", "Log in anew.") from None
    if record.cluster != cluster:
        raise CredentialError(path, f"it is of cluster {record.cluster!r}", f"cluster {cluster!r}", "Log in anew.")
    return record


def _parse(raw: Any) -> CredentialRecord:
    texts = [raw.get("edge_refresh_token"), raw.get("app_token")]
    if any(text is not None and not isinstance(text, str) for text in texts):
        raise TypeError("a token is no text")
    metadata = {str(key): str(value) for key, value in raw.get("metadata", {}).items()}
    return CredentialRecord(str(raw["cluster"]), str(raw["endpoint"]), texts[0], texts[1], metadata)


def delete_credentials(cluster: str) -> bool:
    """Forget a cluster; tell whether there was something.

    Raises:
        CredentialError: A name that is no plain file name.
    """
    try:
        os.remove(credential_path(cluster))
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Tokens for a cluster: for its services, and for the proxy in front of them."""

    token_provider: TokenProvider | None = None
    edge_provider: TokenProvider | None = None

    def interceptors(self) -> list[BearerTokenInjector]:
        """Return what puts the tokens on requests."""
        pairs = ((self.edge_provider, EDGE_HEADER), (self.token_provider, APP_HEADER))
        return [BearerTokenInjector(provider, header) for provider, header in pairs if provider is not None]


def credentials_for(cluster: str, *, edge: TokenProvider | None = None) -> ClientCredentials:
    """Return the tokens for a cluster: of ``MARIN_CLUSTER_TOKEN``, else of its file, else none.

    Args:
        cluster: Its name.
        edge: Who has the token for the proxy in front of it.
    Raises:
        CredentialError: Its file is broken, or others may read it.
        TokenError: The variable holds no token.

    Example:
        >>> credentials_for("no-such-cluster").interceptors() if "MARIN_CLUSTER_TOKEN" not in os.environ else []
        []
    """
    token = _env.CLUSTER_TOKEN.get()
    if token is None:
        record = load_credentials(cluster)
        token = None if record is None else record.app_token
    return ClientCredentials(None if token is None else StaticTokenProvider(token), edge)
