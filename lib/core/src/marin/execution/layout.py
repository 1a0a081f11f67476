"""Where everything about one step lies in the store.

::

    <prefix>/.marin_store.json                         format of the store
    <prefix>/<name>/<version>/                         the committed output: data, .manifest.jsonl, .artifact.json
    <prefix>/<name>/<version>.staging-<epoch>/         what a running body writes; renamed to the above on success
    <prefix>/<name>/.<version>.step/                   everything that the rename must not replace:
        lease.json                                       who works on it, fenced by epoch
        .executor_status                                 RUNNING | SUCCESS | FAILED | DEP_FAILED, then one line of JSON
        attempts/<id>.open.json, <id>.json               append-only: how each attempt began, how it ended
        attempts/<id>.files/                             logs and curves kept of a failed attempt
        scratch/<fingerprint>/                           survives failed attempts of one recipe, deleted after commit
    <prefix>/ledger/YYYY/MM/DD/<id>.json               events

Names that begin with a dot are metadata; walkers over data skip them.
"""

import os
from dataclasses import dataclass

RECORD_FILE = ".artifact.json"
MANIFEST_FILE = ".manifest.jsonl"
STATUS_FILE = ".executor_status"
LEGACY_INFO_FILE = ".executor_info"
STORE_FILE = ".marin_store.json"
STAGING_INFIX = ".staging-"
METADATA_FILES = frozenset({RECORD_FILE, MANIFEST_FILE, STATUS_FILE, LEGACY_INFO_FILE})


@dataclass(frozen=True)
class StepLayout:
    """Paths of one step, all derived from its output path.

    Attributes:
        output_path: The committed folder, absolute, without a trailing slash.
    Example:
        >>> StepLayout("/store/tokens/2026.12.01").control
        '/store/tokens/.2026.12.01.step'
    """

    output_path: str

    @property
    def control(self) -> str:
        """Folder of everything that outlives a commit."""
        parent, leaf = os.path.split(self.output_path)
        return os.path.join(parent, f".{leaf}.step")

    @property
    def lease(self) -> str:
        """The lease object."""
        return os.path.join(self.control, "lease.json")

    @property
    def status(self) -> str:
        """The status file."""
        return os.path.join(self.control, STATUS_FILE)

    @property
    def attempts(self) -> str:
        """Folder of attempt records."""
        return os.path.join(self.control, "attempts")

    @property
    def record(self) -> str:
        """The record of the committed output."""
        return os.path.join(self.output_path, RECORD_FILE)

    @property
    def manifest(self) -> str:
        """The manifest of the committed output."""
        return os.path.join(self.output_path, MANIFEST_FILE)

    def staging(self, epoch: int) -> str:
        """Folder that the body of one lease epoch writes."""
        return f"{self.output_path}{STAGING_INFIX}{epoch}"

    def scratch(self, fingerprint: str) -> str:
        """Folder that survives failed attempts of one recipe."""
        return os.path.join(self.control, "scratch", fingerprint)

    def evidence(self, attempt: str) -> str:
        """Folder of what is kept of a failed attempt."""
        return os.path.join(self.attempts, f"{attempt}.files")

    def staging_epochs(self) -> dict[int, str]:
        """Staging folders that exist, by epoch."""
        parent, leaf = os.path.split(self.output_path)
        start = leaf + STAGING_INFIX
        found: dict[int, str] = {}
        try:
            names = os.listdir(parent)
        except FileNotFoundError:
            return found
        for name in names:
            if name.startswith(start) and name[len(start) :].isdigit():
                found[int(name[len(start) :])] = os.path.join(parent, name)
        return found


def split_control(path: str) -> str | None:
    """Output path that a control folder belongs to, or None when the folder is not one.

    Example:
        >>> split_control("/store/tokens/.2026.12.01.step")
        '/store/tokens/2026.12.01'
    """
    parent, leaf = os.path.split(path)
    if leaf.startswith(".") and leaf.endswith(".step") and len(leaf) > len(".step") + 1:
        return os.path.join(parent, leaf[1 : -len(".step")])
    return None
