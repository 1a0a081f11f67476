"""Whether this process can have Google credentials at all, told in a second or two.

Google's libraries find it out by themselves, but where there are none they ask the network several times first, then go
on as nobody, and repeat each refused request: a minute passes before the first error, and it speaks of something else.

The places are those of the application default credentials: ``GOOGLE_APPLICATION_CREDENTIALS``, the file that
``gcloud auth application-default login`` writes, the metadata server of a machine on Google's cloud.

References:
    Google Cloud documentation, "How Application Default Credentials works".
"""

import functools
import os
from typing import Final

from rigging import _env
from rigging._adapters.http_get import get_bytes
from rigging.errors import MissingCredentials

_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_METADATA_ADDRESS: Final = "169.254.169.254"
_PRODUCT_NAME: Final = "/sys/class/dmi/id/product_name"
_WAIT_S: Final = 2.0


def require_google_credentials(path: str) -> None:
    """Return if there may be credentials for ``path``; says nothing about what they allow.

    Raises:
        MissingCredentials: There is no file with credentials, and no metadata server.
    """
    if _env.GCS_EMULATOR.get() or _env.GOOGLE_CREDENTIALS.get() or os.path.exists(_login_file()):
        return
    if runs_on_google() or _metadata_answers(_env.METADATA_HOST.get()):
        return
    raise MissingCredentials(
        path,
        f"no GOOGLE_APPLICATION_CREDENTIALS, no {_login_file()}, no metadata server",
        "gcloud auth application-default login, or the word anon in FSSPEC_GCS_TOKEN for public buckets",
    )


def runs_on_google() -> bool:
    """Tell whether the machine's firmware says that it is Google's; a sandbox may hide that.

    Example:
        >>> runs_on_google() in (True, False)
        True
    """
    try:
        with open(_PRODUCT_NAME, encoding="utf-8") as stream:
            return "Google" in stream.read()
    except OSError:
        return False


def _login_file() -> str:
    folder = _env.GCLOUD_FOLDER.get() or os.path.expanduser("~/.config/gcloud")
    return os.path.join(folder, "application_default_credentials.json")


def _metadata_answers(host: str | None) -> bool:
    try:
        return _asked(host)
    except OSError:
        return False  # not remembered: a machine's network may come up late


@functools.cache
def _asked(host: str | None) -> bool:
    url = f"http://{host or _METADATA_ADDRESS}/"
    get_bytes(url, timeout_s=_WAIT_S, limit_bytes=10_000, headers=_FLAVOR, wanted=_FLAVOR)
    return True
