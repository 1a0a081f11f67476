"""A working tree on its way to another machine: packed here, unpacked once per machine.

What travels is what git would commit or offer to add: tracked files and new ones that are not ignored. Outside git it
is everything but hidden folders and caches. The archive of equal content is equal bytes, so its digest names it.
"""

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from typing import Final

from fray.errors import JobRequestError

LIMIT_BYTES: Final = 256 << 20
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "venv"})


def pack_tree(folder: str, limit_bytes: int = LIMIT_BYTES) -> tuple[str, bytes]:
    """Return the digest and the archive of a working tree.

    Raises:
        JobRequestError: No such folder, or more than ``limit_bytes`` of files.

    Example:
        >>> import tempfile, pathlib
        >>> folder = tempfile.mkdtemp()
        >>> _ = pathlib.Path(folder, "a.txt").write_text("hello")
        >>> digest, data = pack_tree(folder)
        >>> pathlib.Path(unpack_tree(digest, data, tempfile.mkdtemp()), "a.txt").read_text()
        'hello'
    """
    if not os.path.isdir(folder):
        raise JobRequestError("workspace", folder, "a folder that exists")
    stream = io.BytesIO()
    total = 0
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(_files(folder)):
                path = os.path.join(folder, name)
                info = archive.gettarinfo(path, arcname=name)
                info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
                total += info.size
                if total > limit_bytes:
                    raise JobRequestError(
                        "workspace",
                        folder,
                        f"at most {limit_bytes} bytes of files; {name!r} exceeds that",
                        "Add data to .gitignore and read it from storage, or choose a smaller folder.",
                    )
                if info.isreg():
                    with open(path, "rb") as content:
                        archive.addfile(info, content)
                elif info.issym():
                    archive.addfile(info)
    data = stream.getvalue()
    return hashlib.blake2b(data, digest_size=16).hexdigest(), data


def _files(folder: str) -> Iterator[str]:
    command = ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    with contextlib.suppress(FileNotFoundError):  # no git on this machine
        listed = subprocess.run(command, capture_output=True, check=False)
        if listed.returncode == 0:
            names = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
            yield from (
                name for name in names if os.path.lexists(os.path.join(folder, name))
            )  # deleted, not yet so in git
            return
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        yield from (os.path.relpath(os.path.join(root, name), folder) for name in names)


def unpack_tree(digest: str, data: bytes, base: str | None = None) -> str:
    """Return the folder that holds this tree on this machine; it is unpacked at most once.

    Args:
        digest: From ``pack_tree``.
        data: From ``pack_tree``.
        base: Folder of all trees; default one per user in the temporary folder.
    Raises:
        OSError: The disk is full, or not ours.
    """
    base = base or os.path.join(tempfile.gettempdir(), f"fray-trees-{os.getuid()}")
    os.makedirs(base, mode=0o700, exist_ok=True)
    if os.stat(base).st_uid != os.getuid():
        raise PermissionError(f"folder of shipped trees is not ours: path={base!r}; expected our own. Remove it.")
    target = os.path.join(base, digest)
    if os.path.isdir(target):
        return target
    staged = tempfile.mkdtemp(prefix=".part-", dir=base)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(staged, filter="data")
    try:
        os.rename(staged, target)
    except OSError:
        if not os.path.isdir(target):
            raise
        shutil.rmtree(staged, ignore_errors=True)  # another process was faster
    return target
