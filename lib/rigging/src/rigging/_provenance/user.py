"""A name for the person or service that runs this, fit for a path or a job name."""

import getpass
import logging
import re

from rigging.errors import ProvenanceError

logger = logging.getLogger(__name__)

_SHARED_LOGINS = frozenset({"root", "runner", "ubuntu"})


def clean_username(name: str) -> str:
    """Return ``name`` without its domain, in lower case, everything outside ``[a-z0-9_-]`` turned into ``-``.

    Example:
        >>> clean_username("Ada.Lovelace@example.org")
        'ada-lovelace'
    """
    return re.sub(r"[^a-z0-9_-]+", "-", name.partition("@")[0].lower()).strip("-")


def username_segment(built_by: str | None = None) -> str:
    """Return a path-safe name of whoever runs this.

    Args:
        built_by: Name to use; default the operating system's login.
    Raises:
        ProvenanceError: There is no usable name.
    """
    name = built_by
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError) as error:
            raise ProvenanceError("no user name", repr(error), "Set the variable USER.") from error
    segment = clean_username(name)
    if not segment:
        raise ProvenanceError("no user name", f"name={name!r} has no usable character", "Set the variable USER.")
    if segment in _SHARED_LOGINS:
        logger.debug("the login %r is shared by many; set USER to tell people apart", segment)
    return segment
