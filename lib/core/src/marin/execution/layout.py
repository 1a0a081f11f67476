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

In a remote store (a URL) the same names are used, but for what a running body writes: staging and scratch folders lie
in a workspace on the driver's own disk, and the commit uploads.
"""

import os
from dataclasses import dataclass

from marin.execution._objects import is_remote, list_prefix, local_workspace

RECORD_FILE = ".artifact.json"
MANIFEST_FILE = ".manifest.jsonl"
STATUS_FILE = ".executor_status"
LEGACY_INFO_FILE = ".executor_info"
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

    @property
    def remote(self) -> bool:
        """Whether the store is one of objects."""
        return is_remote(self.output_path)

    @property
    def work(self) -> str:
        """Local folder that holds the scratch folder and what is being deleted."""
        return local_workspace(self.output_path) if self.remote else self.control

    @property
    def _staging_stem(self) -> str:
        return os.path.join(self.work, "output") if self.remote else self.output_path

    def staging(self, epoch: int) -> str:
        """Local folder that the body of one lease epoch writes."""
        return f"{self._staging_stem}{STAGING_INFIX}{epoch}"

    def scratch(self, fingerprint: str) -> str:
        """Local folder that survives failed attempts of one recipe."""
        return os.path.join(self.work, "scratch", fingerprint)

    def evidence(self, attempt: str) -> str:
        """Folder of what is kept of a failed attempt."""
        return os.path.join(self.attempts, f"{attempt}.files")

    def staging_epochs(self) -> dict[int, str]:
        """Staging folders that exist on this machine, by epoch."""
        parent, leaf = os.path.split(self._staging_stem)
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


def store_join(prefix: str, relative: str) -> str:
    """A path below a prefix, or the path itself when it is absolute; without ``..`` and doubled slashes.

    Example:
        >>> store_join("s3://example-bucket/store", "tokens/2026.12.01"), store_join("/store", "/elsewhere/tokens")
        ('s3://example-bucket/store/tokens/2026.12.01', '/elsewhere/tokens')
    """
    if is_remote(relative) or os.path.isabs(relative):
        return relative.rstrip("/") if is_remote(relative) else os.path.normpath(relative)
    if is_remote(prefix):
        return f"{prefix}/{os.path.normpath(relative)}"
    return os.path.normpath(os.path.join(prefix, relative))


def below(path: str, prefix: str) -> str:
    """A path relative to the prefix it lies below; paths elsewhere come back as they are for URLs.

    Example:
        >>> below("/store/tokens/2026.12.01", "/store"), below("s3://b/store/x", "s3://b/store")
        ('tokens/2026.12.01', 'x')
    """
    return path.removeprefix(prefix + "/") if is_remote(path) else os.path.relpath(path, prefix)


def list_folder(path: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of everything else directly in a folder, sorted; both empty when it does not exist."""
    if is_remote(path):
        return list_prefix(path)
    folders, files = [], []
    try:
        with os.scandir(path) as listing:
            for entry in listing:
                (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    return sorted(folders), sorted(files)


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
