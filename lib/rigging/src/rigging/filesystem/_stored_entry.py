"""What a listing says of one object or folder."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One object or folder of a store.

    Args:
        path: Local path or full URL.
        size: Bytes; None for a folder (on an object store: a prefix with objects below it).
        mtime: Modification time, epoch seconds; None where the store does not say.
        md5: Digest of the content as the store knows it, 32 hex digits; None where it does not say.
    """

    path: str
    size: int | None
    mtime: float | None = None
    md5: str | None = None

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder or prefix."""
        return self.size is None
