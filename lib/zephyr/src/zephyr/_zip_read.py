"""Members of zip archives, one at a time and never all at once."""

import fnmatch
import zipfile
import zlib
from collections.abc import Iterator
from typing import TypedDict

from zephyr import counters
from zephyr._files import open_input
from zephyr.errors import CorruptInputError, DatasetError, RecordTooLargeError

_MEMBER_LIMIT_BYTES = 512 << 20
_ENCRYPTED = 0x1


class ZipMember(TypedDict):
    """A file in a zip archive: its name there, and all of its bytes."""

    filename: str
    content: bytes


def load_zip_members(path: str, pattern: str = "*") -> Iterator[ZipMember]:
    """Files in a zip archive: path -> `{"filename": str, "content": bytes}`, in the order of its directory.

    Made for `flat_map` behind `from_files`. Every member's checksum is compared; folders are left out. Counts
    `zephyr/records_in`, and its decompressed bytes in `zephyr/bytes_in`.

    Args:
        path: Local path or fsspec URL of the archive.
        pattern: What the whole name must match, with `*` (across folders too), `?` and `[...]`; capitals matter.
    Raises:
        MissingInputError: no such file.
        CorruptInputError: no zip archive, a damaged one, or one whose members do not have the bytes they should.
        RecordTooLargeError: a member of more than 512 MiB.
        DatasetError: a matching member is encrypted, or packed in a way that Python does not know.
    Example:
        >>> import io, os, tempfile, zipfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with zipfile.ZipFile(f"{folder}/x.zip", "w") as archive:
        ...         archive.writestr("train/a.txt", "one")
        ...         archive.writestr("readme", "two")
        ...     list(load_zip_members(f"{folder}/x.zip", "*.txt"))
        [{'filename': 'train/a.txt', 'content': b'one'}]
    """
    with open_input(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                for number, info in enumerate(archive.infolist(), 1):
                    if not info.is_dir() and fnmatch.fnmatchcase(info.filename, pattern):
                        content = _read(path, archive, info, number)
                        counters.increment("zephyr/records_in")
                        counters.increment("zephyr/bytes_in", len(content))
                        yield {"filename": info.filename, "content": content}
        except zipfile.BadZipFile as error:
            raise CorruptInputError(path, f"damaged zip archive: {error}") from error


def _read(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, number: int) -> bytes:
    name = info.filename
    if info.flag_bits & _ENCRYPTED:
        raise DatasetError(
            f"cannot read a zip member: path={path}, filename={name!r} is encrypted; expected plain members. "
            "Leave it out by the pattern, or unpack the archive first."
        )
    if info.file_size > _MEMBER_LIMIT_BYTES:
        raise RecordTooLargeError(path, number, info.file_size, _MEMBER_LIMIT_BYTES)
    try:
        content = archive.read(info)
    except NotImplementedError as error:
        raise DatasetError(
            f"cannot read a zip member: path={path}, filename={name!r} ({error}); expected stored, deflate, bzip2 or "
            "lzma. Pack the archive again."
        ) from error
    except (zlib.error, EOFError, OSError) as error:
        raise CorruptInputError(path, f"damaged zip member {name}: {error}", info.header_offset) from error
    if len(content) != info.file_size:
        raise CorruptInputError(path, f"zip member {name} ends early", info.header_offset)
    return content
