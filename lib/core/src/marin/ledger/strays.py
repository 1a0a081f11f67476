"""What drivers that died or slept left in a store, and that no later run will meet.

Three kinds. In a bucket, an *object* below an output that its manifest does not list: a loser uploaded it late, or died
before there was a record. On a disk, *staging* folders and *trash* beside a step that is only served from then on.
Nobody's own files are among them: a folder without any attempt, or a file that somebody put into an output on a disk,
is left alone.

Three checks keep what is in use: a step whose lease is held is passed over, and so is one that was left running (its
next run finishes or removes what lies there), and everything younger than an age that no upload lasts. To remove, the
lease is taken first, so that no driver begins meanwhile.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rigging.errors import ConditionalWriteError, LeaseHeldError
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.lease import Lease
from rigging.filesystem.storage_path import StoragePath

from marin.errors import CorruptRecordError, RecordFormatError
from marin.execution._files import exists, take_away
from marin.execution.layout import METADATA_FILES, StepLayout, list_folder
from marin.execution.manifest import read_manifest
from marin.execution.records import read_record
from marin.execution.step_status import Status, read_status
from marin.ledger.scan import address_of, step_paths

DEFAULT_AGE_S = 24 * 3600.0


@dataclass(frozen=True)
class Stray:
    """Something that nothing refers to.

    Attributes:
        step: ``name@version`` that it lies with.
        path: Where it lies.
        kind: ``object``, ``staging`` or ``trash``.
        bytes: Its size; of a folder everything in it.
        age_s: Seconds since it was last written.
        removed: Whether it is gone.
    """

    step: str
    path: str
    kind: str
    bytes: int
    age_s: float
    removed: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON object of every field."""
        return asdict(self)


def find_strays(
    prefix: str, *, now: float, older_than_s: float = DEFAULT_AGE_S, remove: bool = False
) -> tuple[list[Stray], list[str]]:
    """List what was left behind in a store, and remove it when told to.

    Args:
        prefix: Root of the store.
        now: Seconds since 1970, by the clock of the store's files.
        older_than_s: Younger things are left alone.
        remove: Whether to remove what is found.
    Returns:
        The strays in order of steps, and the steps that were passed over because a driver is at work.
    Raises:
        ValueError: ``older_than_s`` is negative.
    Example:
        >>> import tempfile
        >>> find_strays(tempfile.mkdtemp(), now=0.0)
        ([], [])
    """
    if older_than_s < 0:
        raise ValueError(f"bad age: older_than_s={older_than_s}; expected 0 or more.")
    found: list[Stray] = []
    busy: list[str] = []
    for path in step_paths(prefix):
        layout = StepLayout(path)
        label = "@".join(address_of(prefix, layout))
        lease = Lease(layout.lease)
        state = lease.read() if exists(layout.lease) else None
        if state is None or _comes_again(layout):
            continue
        if state.live:
            busy.append(label)
            continue
        strays = [item for item in _strays_of(layout, label, now) if item.age_s >= older_than_s]
        if remove and strays:
            try:
                with lease.hold() as held:
                    # Somebody may have come and gone between the first look and the lease.
                    strays = [item for item in _strays_of(layout, label, now) if item.age_s >= older_than_s]
                    strays = [replace(item, removed=_remove(layout, item, held.check)) for item in strays]
            except LeaseHeldError:
                busy.append(label)
                continue
        found += strays
    return found, busy


def _comes_again(layout: StepLayout) -> bool:
    """Whether the next run of the step deals with what lies there, such as a commit that only has to be finished."""
    try:
        status = read_status(layout)
    except (CorruptRecordError, RecordFormatError):
        return True  # nobody can tell
    return status is None or status.status is Status.RUNNING


def _strays_of(layout: StepLayout, label: str, now: float) -> Iterator[Stray]:
    if layout.remote:
        yield from _objects(layout, label, now)
        return
    for path in layout.staging_epochs().values():
        yield _folder(label, path, "staging", now)
    for name in list_folder(layout.work)[0]:
        if name.startswith("trash-"):
            yield _folder(label, os.path.join(layout.work, name), "trash", now)


def _objects(layout: StepLayout, label: str, now: float) -> Iterator[Stray]:
    """Objects of an output that its manifest does not list; without a record, all of them."""
    listed: set[str] = set()
    if read_record(layout.output_path) is not None:
        entries = read_manifest(layout.manifest)
        if entries is None:
            return  # an older form of output, or a damaged one: that is for `marin verify` to say
        listed = {entry.path for entry in entries} | METADATA_FILES
    base = layout.output_path.rstrip("/") + "/"
    if not exists(layout.output_path):
        return
    for entry in StoragePath(layout.output_path).scan(recursive=True):
        if entry.path.removeprefix(base) not in listed:
            # A store that tells no time gives no ground to call anything old.
            age_s = now - entry.mtime if entry.mtime is not None else 0.0
            yield Stray(label, entry.path, "object", entry.size or 0, age_s)


def _folder(label: str, path: str, kind: str, now: float) -> Stray:
    size, newest = 0, os.stat(path).st_mtime
    for folder, _, names in os.walk(path):
        newest = max(newest, os.stat(folder).st_mtime)
        for name in names:
            info = os.lstat(os.path.join(folder, name))
            size, newest = size + info.st_size, max(newest, info.st_mtime)
    return Stray(label, path, kind, size, now - newest)


def _remove(layout: StepLayout, stray: Stray, check: Callable[[], None]) -> bool:
    """Remove it under the lease; False when somebody replaced it meanwhile."""
    check()
    if stray.kind != "object":
        take_away(stray.path, layout.work)  # that empties the whole trash
        return not os.path.lexists(stray.path)
    target = conditional_object(stray.path)
    version = target.version()
    if version is None:
        return False
    check()
    try:
        target.delete(expected_version=version)
    except ConditionalWriteError:
        return False
    return True
