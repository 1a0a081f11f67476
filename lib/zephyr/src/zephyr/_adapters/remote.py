"""Files behind fsspec URLs. fsspec takes a fifth of a second to import, which local pipelines are spared."""

from typing import Any


def _resolve(path: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    fs, plain = url_to_fs(path)
    return fs, plain


def open_url(path: str, mode: str) -> Any:
    """Open a URL as a file object."""
    fs, plain = _resolve(path)
    return fs.open(plain, mode)


def list_files(pattern: str) -> dict[str, int]:
    """Sizes of the files that a URL pattern names, by URL."""
    fs, plain = _resolve(pattern)
    if any(char in plain for char in "*?["):
        listed = fs.glob(plain, detail=True)
    else:
        listed = {plain: fs.info(plain)} if fs.isfile(plain) else {}
    return {fs.unstrip_protocol(name): info["size"] for name, info in listed.items() if info["type"] == "file"}


def exists(path: str) -> bool:
    """Whether something is at a URL."""
    fs, plain = _resolve(path)
    return bool(fs.exists(plain))


def remove(path: str) -> None:
    """Remove the file at a URL if it is there."""
    fs, plain = _resolve(path)
    if fs.exists(plain):
        fs.rm_file(plain)


def move(source: str, target: str) -> None:
    """Give the file at a URL another name in the same store."""
    fs, plain = _resolve(target)
    fs.mv(_resolve(source)[1], plain)


def content_identity(path: str) -> str:
    """What the store says identifies the present content."""
    fs, plain = _resolve(path)
    return str(fs.ukey(plain))
