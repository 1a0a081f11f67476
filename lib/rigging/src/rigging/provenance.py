"""Where did this result come from: which code, which machine, which packages, who.

The identity of the code is the git *tree* of the working copy, uncommitted changes included: equal content gives an
equal hash whatever the history was. The tree is written through a temporary index, so the user's index is never locked
and two launches at once cannot disturb each other.
"""

import logging
import threading
from typing import Final

from rigging import _env
from rigging._provenance.environment import environment_report
from rigging._provenance.git import dirty_patch, from_git
from rigging._provenance.record import Provenance
from rigging._provenance.user import username_segment

logger = logging.getLogger(__name__)

__all__ = [
    "Provenance",
    "capture",
    "dirty_patch",
    "environment_report",
    "from_git",
    "launch_provenance",
    "username_segment",
]

_launch_lock: Final = threading.Lock()
_launch: list[Provenance] = []


def capture(repo: str | None = None) -> Provenance:
    """Return the provenance of ``repo`` (default: the current folder); never raises.

    ``MARIN_PROVENANCE`` wins when it holds valid JSON: a launcher hands its own provenance to the jobs it starts.
    Without git or a repository the hash fields are empty.
    """
    handed = _env.PROVENANCE.get()
    if handed is not None:
        try:
            return Provenance.from_json(handed)
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("ignoring malformed %s: %r", _env.PROVENANCE.name, error)
    try:
        return from_git(repo)
    except RuntimeError as error:
        logger.debug("no git provenance: %s", error)
    try:
        built_by = username_segment()
    except RuntimeError:
        built_by = ""
    return Provenance(tree_hash="", base_commit="", dirty=False, branch="", built_by=built_by)


def launch_provenance() -> Provenance:
    """Return the provenance of this process's start, captured once however many threads ask."""
    with _launch_lock:
        if not _launch:
            _launch.append(capture())
        return _launch[0]
