"""Read the state of a git working copy without touching it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from rigging._provenance.record import Provenance
from rigging._provenance.user import username_segment
from rigging.errors import ProvenanceError
from rigging.timing import Timestamp

_TIMEOUT_S = 60


def _git(repo: str, *args: str, index: str | None = None) -> str:
    env = dict(os.environ, GIT_OPTIONAL_LOCKS="0", LC_ALL="C")
    if index is not None:
        env["GIT_INDEX_FILE"] = index
    try:
        done = subprocess.run(
            ["git", "-C", repo, *args],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env=env,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProvenanceError("git does not run", repr(error), "Install git.") from error
    if done.returncode != 0:
        raise ProvenanceError(f"git {args[0]} failed", done.stderr.strip(), "Run inside a repository with a commit.")
    return done.stdout


def _has_commit(repo: str) -> bool:
    try:
        _git(repo, "rev-parse", "--verify", "HEAD")
    except ProvenanceError:
        return False
    return True


def working_tree_hash(repo: str, *, include_untracked: bool = False) -> str:
    """Return the git tree of the working copy, written through a temporary index.

    Args:
        repo: A folder inside the repository.
        include_untracked: Also hash files that git does not know (ignored ones stay out).
    Raises:
        ProvenanceError: Not a repository.
    """
    top = _git(repo, "rev-parse", "--show-toplevel").strip()
    real_index = _git(top, "rev-parse", "--git-path", "index").strip()
    real_index = os.path.join(top, real_index)
    with tempfile.TemporaryDirectory(prefix="rigging-index-") as folder:
        index = os.path.join(folder, "index")
        if os.path.exists(real_index):
            # Its stat cache spares git from reading every file again. Its time has to stay, too: git reads a file whose
            # size is the recorded one only when it is not older than the index.
            shutil.copy2(real_index, index)
        _git(top, "add", "--all" if include_untracked else "--update", index=index)
        return _git(top, "write-tree", index=index).strip()


def from_git(repo: str | None = None, *, include_untracked: bool = False) -> Provenance:
    """Return the provenance of a git working copy.

    Args:
        repo: A folder inside the repository; default the current one.
        include_untracked: Let untracked files take part in the tree hash and in ``dirty``.
    Raises:
        ProvenanceError: No git, no repository, or no commit yet.
    """
    repo = repo or os.getcwd()
    commit = _git(repo, "rev-parse", "--verify", "HEAD").strip()
    head_tree = _git(repo, "rev-parse", "HEAD^{tree}").strip()
    tree = working_tree_hash(repo, include_untracked=include_untracked)
    try:
        remote = _git(repo, "remote", "get-url", "origin").strip() or None
    except ProvenanceError:
        remote = None
    return Provenance(
        tree_hash=tree,
        base_commit=commit,
        dirty=tree != head_tree,
        branch=_git(repo, "branch", "--show-current").strip(),
        built_by=username_segment(),
        git_remote=re.sub(r"(?<=://)[^/@]*@", "", remote) if remote else None,
        created_at=Timestamp.now().as_formatted_date(),
        command_line=tuple(sys.orig_argv),
    )


def dirty_patch(repo: str | None = None) -> str | None:
    """Return the uncommitted changes to tracked files as a binary-safe patch; None when clean or not a repository.

    ``git apply`` on the base commit gives the working copy back.
    """
    repo = repo or os.getcwd()
    if not _has_commit(repo):
        return None
    top = _git(repo, "rev-parse", "--show-toplevel").strip()
    return _git(top, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff") or None
