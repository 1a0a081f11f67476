"""Manifests: which files an output consists of, with their SHA-256, and one digest over all of them.

``.manifest.jsonl`` holds one line a file, sorted by path. ``content_digest`` is the SHA-256 over the lines of files
that are not volatile, so it says whether two runs made the same *data*, and can be checked by anyone with
``sha256sum``.
"""

import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from marin.errors import CorruptRecordError, UnsupportedFileError
from marin.execution._objects import hash_object, is_remote, object_sizes
from marin.execution.layout import METADATA_FILES
from marin.execution.records import read_text


@dataclass(frozen=True)
class ManifestEntry:
    """One file of an output.

    Attributes:
        path: Relative to the output, with '/'.
        size: Bytes.
        sha256: Hex digest of the content; of the target's text for a link.
        volatile: Whether it is left out of ``content_digest``.
        link: Target of a symbolic link, else None.
    """

    path: str
    size: int
    sha256: str
    volatile: bool = False
    link: str | None = None

    def line(self) -> str:
        """The line in the manifest."""
        data: dict[str, object] = {"path": self.path, "sha256": self.sha256, "size": self.size}
        if self.volatile:
            data["volatile"] = True
        if self.link is not None:
            data["link"] = self.link
        return json.dumps(data, sort_keys=True, ensure_ascii=False)


@functools.lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    table = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(table.get(part, re.escape(part)) for part in parts))


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a relative path fits one of the patterns (``*`` within a folder, ``**`` across folders).

    Example:
        >>> matches("logs/a/b.txt", ["logs/**"]), matches("a/logs.txt", ["*.txt"])
        (True, False)
    """
    return any(_compile(pattern).fullmatch(path) for pattern in patterns)


def walk_files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files and links below a folder, as relative paths in sorted order, without the engine's own metadata.

    Raises:
        UnsupportedFileError: Something that is neither a file, a folder nor a link, or a name that is not UTF-8.
    """
    folders = [""]
    found: list[tuple[str, os.stat_result]] = []
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder) if folder else root) as listing:
            children = list(listing)
        for entry in children:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            try:
                relative.encode("utf-8")
            except UnicodeEncodeError:
                raise UnsupportedFileError(os.path.join(root, relative), "its name is not UTF-8") from None
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                folders.append(relative)
            elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                if folder or entry.name not in METADATA_FILES:
                    found.append((relative, info))
            else:
                raise UnsupportedFileError(entry.path, f"mode={stat.filemode(info.st_mode)}")
    found.sort(key=lambda item: item[0])
    yield from found


def hash_file(path: str, *, sync: bool = False) -> str:
    """SHA-256 of a file, in hex; with ``sync`` the file is on disk when this returns."""
    with open(path, "rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
    return digest


def build_manifest(root: str, *, volatile: Sequence[str] = (), sync: bool = False) -> list[ManifestEntry]:
    """Hash every file of an output.

    Args:
        root: The output folder.
        volatile: Patterns of files that do not enter the content digest.
        sync: Also make each file and folder durable.
    Returns:
        Entries sorted by path.
    Raises:
        UnsupportedFileError: A socket, a device, or a link that leaves the output.
    """
    entries = []
    for relative, info in walk_files(root):
        path = os.path.join(root, relative)
        is_volatile = matches(relative, volatile)
        if stat.S_ISLNK(info.st_mode):
            target = os.readlink(path)
            inside = os.path.normpath(os.path.join(os.path.dirname(relative), target))
            if os.path.isabs(target) or inside.startswith(".."):
                raise UnsupportedFileError(path, f"it links to {target!r}, outside the output")
            digest = hashlib.sha256(target.encode("utf-8", "surrogateescape")).hexdigest()
            entries.append(ManifestEntry(relative, len(target), digest, is_volatile, target))
        else:
            entries.append(ManifestEntry(relative, info.st_size, hash_file(path, sync=sync), is_volatile))
    if sync:
        _sync_folders(root)
    return entries


def _sync_folders(root: str) -> None:
    for folder, _, _ in os.walk(root):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def content_digest(entries: Iterable[ManifestEntry]) -> str:
    """SHA-256 over ``<sha256>  <size>  <path>`` of every entry that is not volatile.

    Example:
        >>> content_digest([])[:8]
        'e3b0c442'
    """
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda item: item.path):
        if not entry.volatile:
            digest.update(f"{entry.sha256}  {entry.size}  {entry.path}\n".encode())
    return digest.hexdigest()


def manifest_text(entries: Iterable[ManifestEntry]) -> str:
    """The manifest file."""
    return "".join(entry.line() + "\n" for entry in sorted(entries, key=lambda item: item.path))


def read_manifest(path: str) -> list[ManifestEntry] | None:
    """Entries of a manifest file, or None when there is none.

    Raises:
        CorruptRecordError: A line does not parse.
    """
    text = read_text(path)
    if text is None:
        return None
    entries = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        try:
            data = json.loads(line)
            entry = ManifestEntry(
                data["path"], data["size"], data["sha256"], data.get("volatile", False), data.get("link")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecordError(path, f"line {number}: {error!r}") from None
        entries.append(entry)
    return entries


def compare_manifest(root: str, entries: Sequence[ManifestEntry], *, deep: bool) -> list[str]:
    """What differs between a folder and its manifest.

    Args:
        root: The output folder.
        entries: The manifest.
        deep: Hash every file again; otherwise only names and sizes are compared.
    Returns:
        One line a difference; empty when they agree.
    """
    if is_remote(root):
        return _compare_objects(root, entries, deep=deep)
    problems = []
    present = dict(walk_files(root))
    for entry in entries:
        info = present.pop(entry.path, None)
        path = os.path.join(root, entry.path)
        if info is None:
            problems.append(f"missing: {entry.path}")
        elif (entry.link is not None) != stat.S_ISLNK(info.st_mode):
            problems.append(f"changed kind: {entry.path}")
        elif entry.link is not None:
            if os.readlink(path) != entry.link:
                problems.append(f"changed link: {entry.path}")
        elif info.st_size != entry.size:
            problems.append(f"changed size: {entry.path}: {entry.size} -> {info.st_size}")
        elif deep and hash_file(path) != entry.sha256:
            problems.append(f"changed content: {entry.path}")
    problems.extend(f"unlisted: {path}" for path in present)
    return problems


def _compare_objects(root: str, entries: Sequence[ManifestEntry], *, deep: bool) -> list[str]:
    """``compare_manifest`` for an output in an object store, where a link is a copy of what it points to."""
    problems = []
    present = {path: size for path, size in object_sizes(root).items() if path not in METADATA_FILES}
    for entry in entries:
        size = present.pop(entry.path, None)
        if size is None:
            problems.append(f"missing: {entry.path}")
        elif entry.link is None and size != entry.size:
            problems.append(f"changed size: {entry.path}: {entry.size} -> {size}")
        elif deep and entry.link is None and hash_object(f"{root}/{entry.path}") != entry.sha256:
            problems.append(f"changed content: {entry.path}")
    problems.extend(f"unlisted: {path}" for path in sorted(present))
    return problems
