"""The uncommitted part of the code behind a result, kept once per content beside the ledger.

A commit id alone does not say what ran when the working copy was dirty. Secrets are taken out of the patch like of
everything that is kept; the record says so, and whether ``git apply`` still takes it.
"""

import functools
import hashlib
import os
from typing import Any

from rigging.provenance import dirty_patch, launch_provenance

from marin.execution._files import create_text
from marin.execution.describe import provenance_payload
from marin.execution.events import LEDGER_FOLDER
from marin.execution.patch_redaction import redact_patch

MAX_PATCH_BYTES = 2 * 2**20
"""Larger patches are not kept; the record then only says how large they were."""


def patch_path(prefix: str, digest: str) -> str:
    """Where a patch lies in a store."""
    return os.path.join(prefix, LEDGER_FOLDER, "patches", f"{digest}.patch")


@functools.cache
def _launch_patch() -> str | None:
    try:
        return dirty_patch()
    except (RuntimeError, OSError, UnicodeDecodeError):
        return None  # no git, or a diff that is not text: the tree hash still identifies the code


@functools.cache
def launch_record(prefix: str) -> dict[str, Any]:
    """Provenance of this process for records; keeps the dirty patch in the store, once.

    Returns:
        Provenance as JSON; of a dirty working copy with ``patch`` (SHA-256 of the kept text), ``patch_bytes``,
        ``patch_redacted`` (something was taken out) and ``patch_applies``.
    """
    launched = launch_provenance()
    data = provenance_payload(launched)
    text = _launch_patch() if launched.dirty else None
    if text is None:
        return data
    patch = redact_patch(text)
    kept = patch.text
    data |= {
        "patch_bytes": len(kept.encode("utf-8", "replace")),
        "patch_redacted": patch.redacted,
        "patch_applies": patch.applies,
    }
    if data["patch_bytes"] <= MAX_PATCH_BYTES:
        digest = hashlib.sha256(kept.encode("utf-8", "replace")).hexdigest()
        create_text(patch_path(prefix, digest), kept)
        data["patch"] = digest
    return data
