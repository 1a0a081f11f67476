"""The file operations of the commit protocol on an object store.

An object store has no rename, so an output cannot appear at once. What it has is compare-and-swap on one object, and
that is enough: a body writes to a folder of this machine's disk, and the commit uploads file after file, each only
over the version that was there when the lease was taken (or over nothing). A driver that lost its lease meets the
objects of its successor and is refused; whatever it had uploaded before, the successor replaces. The status comes
last, so a reader that sees ``SUCCESS`` sees a whole output.

Files are uploaded one at a time, read as they are sent.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence

from rigging.errors import ConditionalWriteError, RiggingError
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.storage_path import StoragePath, is_remote_path

from marin.errors import StoreUnavailableError

STORE_FILE = ".marin_store.json"
_TRIES = 8


def is_remote(path: str) -> bool:
    """Whether a path names an object in a remote store.

    Example:
        >>> is_remote("s3://example-bucket/store"), is_remote("/store")
        (True, False)
    """
    return is_remote_path(path)


def check_remote_prefix(prefix: str) -> str:
    """The prefix without slashes at its end, of a store that answered once.

    Raises:
        StoreUnavailableError: The store cannot compare and swap, the package that reaches it is not installed, or it
            does not answer.
    """
    root = prefix.rstrip("/")
    try:
        conditional_object(f"{root}/{STORE_FILE}").read()
    except (RiggingError, OSError) as error:
        raise StoreUnavailableError(prefix, str(error)) from error
    return root


def read_object(path: str) -> bytes | None:
    """Content of an object, or None when there is none.

    Raises:
        OSError: The store does not answer.
    """
    stored = conditional_object(path).read()
    return None if stored is None else stored.data


def read_object_text(path: str) -> str | None:
    """Text of an object, or None when there is none.

    Raises:
        UnicodeDecodeError: It is not UTF-8.
        OSError: The store does not answer.
    """
    data = read_object(path)
    return None if data is None else data.decode("utf-8")


def create_object(path: str, data: bytes) -> bool:
    """Create an object that must not exist yet; the first of several writers wins.

    Returns:
        Whether this call created it. A store that did and whose answer got lost counts as created.
    """
    target = conditional_object(path)
    try:
        target.write(data, expected_version=None)
    except ConditionalWriteError:
        stored = target.read()
        return stored is not None and stored.data == data
    return True


def replace_object_text(path: str, text: str, *, allowed: Callable[[str], None] | None = None) -> None:
    """Write an object whole, over whatever is there.

    Args:
        path: The object.
        text: Its new content.
        allowed: Told what is there before it is replaced; raises to refuse.
    Raises:
        OSError: Others kept writing in between.
    """
    data = text.encode("utf-8")
    target = conditional_object(path)
    for _ in range(_TRIES):
        stored = target.read()
        if stored is not None:
            if stored.data == data:
                return
            if allowed is not None:
                allowed(stored.data.decode("utf-8", "replace"))
        with contextlib.suppress(ConditionalWriteError):
            target.write(data, expected_version=None if stored is None else stored.version)
            return
    raise OSError(f"cannot write {path}: {_TRIES} tries met other writers")


def remove_object(path: str) -> None:
    """Delete an object.

    Raises:
        FileNotFoundError: There is none.
    """
    StoragePath(path).rm()


def object_exists(path: str) -> bool:
    """Whether an object, or anything below a prefix, is there."""
    return StoragePath(path).exists()


def list_prefix(path: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of the objects directly below a prefix, sorted; both empty when there are none."""
    for _, folders, files in StoragePath(path).walk():
        return folders, files
    return [], []


def object_sizes(root: str) -> dict[str, int]:
    """Bytes of every object below a prefix, by its path relative to it."""
    base = root.rstrip("/") + "/"
    found: dict[str, int] = {}
    for folder, _, files in StoragePath(root).walk():
        for name in files:
            path = folder / name
            found[str(path).removeprefix(base)] = path.size()
    return found


def hash_object(path: str) -> str:
    """SHA-256 of an object, in hex, read as a stream."""
    with StoragePath(path).open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def object_versions(root: str) -> dict[str, str]:
    """Version of every object below a prefix, by its path relative to it; read when an owner begins."""
    versions: dict[str, str] = {}
    for relative in object_sizes(root):
        version = conditional_object(f"{root}/{relative}").version()
        if version is not None:
            versions[relative] = version
    return versions


def put_file(source: str, target: str) -> None:
    """Copy a local file to an object that nobody else writes."""
    StoragePath(target).upload_from(source)


def upload_output(
    source: str,
    target: str,
    data: Sequence[str],
    metadata: Sequence[str],
    seen: Mapping[str, str],
    check: Callable[[], None],
    confirm: Callable[[], None],
) -> None:
    """Bring a sealed folder into its place: data, then what no longer belongs is deleted, then metadata.

    Args:
        source: Local folder.
        target: Prefix of the output.
        data: Files of the output, relative.
        metadata: Files that say the output is whole, relative, in order.
        seen: Version of each object that was there when this owner began, by relative path.
        check: Raises when the lease is lost; called before every write. May trust heartbeats that are on time.
        confirm: The same, from the store itself; called after the version of an object was read that others changed.
    Raises:
        OSError: Others kept writing in between, although the lease is ours.
    """
    for relative in data:
        _upload(source, target, relative, seen.get(relative), check, confirm)
    for relative in sorted(set(seen).difference(data, metadata)):
        check()
        # Whoever has replaced it meanwhile is looked after by the next check.
        with contextlib.suppress(ConditionalWriteError):
            conditional_object(f"{target}/{relative}").delete(expected_version=seen[relative])
    for relative in metadata:
        _upload(source, target, relative, seen.get(relative), check, confirm)


def _upload(
    source: str,
    target: str,
    relative: str,
    expected: str | None,
    check: Callable[[], None],
    confirm: Callable[[], None],
) -> None:
    path, url = os.path.join(source, relative), f"{target}/{relative}"
    stored = conditional_object(url)
    for _ in range(_TRIES):
        # The version that may be replaced is always older than a confirmed lease: a driver that sleeps after that
        # cannot replace what its successor wrote meanwhile.
        check()
        try:
            stored.write_file(path, expected_version=expected)
            return
        except ConditionalWriteError:
            expected = stored.version()
            # The answer to our own write may have been lost; a hash that another write overtakes only costs a try.
            if expected is not None and hash_object(url) == _hash_local(path):
                return
            confirm()
    raise OSError(f"cannot upload {url}: {_TRIES} tries met other writers")


def _hash_local(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local_workspace(output_path: str) -> str:
    """Folder of this machine's disk in which one step of a remote store is built.

    Example:
        >>> os.path.basename(local_workspace("s3://example-bucket/store/tokens/2026.12.01"))
        'tokens-2026.12.01-84a593a9'
    """
    root = os.path.join(tempfile.gettempdir(), f"marin-work-{os.getuid()}")
    name = "-".join(output_path.split("/")[-2:])
    return os.path.join(root, f"{name}-{hashlib.sha256(output_path.encode()).hexdigest()[:8]}")


def make_private(folder: str) -> None:
    """Make a workspace, with a parent that only this user may enter.

    Raises:
        StoreUnavailableError: It belongs to somebody else.
    """
    root = os.path.dirname(folder)
    os.makedirs(root, mode=0o700, exist_ok=True)
    if os.stat(root).st_uid != os.getuid():
        raise StoreUnavailableError(root, "the folder for unfinished outputs belongs to another user")
    os.makedirs(folder, mode=0o700, exist_ok=True)
