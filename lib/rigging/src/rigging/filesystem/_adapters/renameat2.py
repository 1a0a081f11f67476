"""Swap two directory entries in one step, with the Linux system call that Python does not offer."""

import errno
import os

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: str, second: str) -> bool:
    """Swap the two paths atomically; return False where the kernel or file system cannot.

    Raises:
        OSError: The swap is possible in principle but failed.

    References:
        Linux manual page rename(2), RENAME_EXCHANGE.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    done = libc.renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), first, None, second)
