"""A file system that hangs: FUSE whose server, this process, answers nothing until it is told to.

No library is needed: the kernel's side of FUSE is a device whose number is given to mount(2), and a request that
nobody reads from it is one that hangs, as everything does on a dead network disk.
Source: Documentation/filesystems/fuse.rst, include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MNT_DETACH = 2


@contextmanager
def hanging(target: Path) -> Iterator[HangingFileSystem]:
    """Mounts one at the folder; at the end every call that hangs in it fails, and it is unmounted."""
    mounted = HangingFileSystem(target)
    try:
        yield mounted
    finally:
        mounted.die()
        with suppress(OSError):
            _call("umount2", str(target).encode(), _MNT_DETACH)


class HangingFileSystem:
    """Everything that asks it waits, until it dies: then everything fails with ENOTCONN."""

    def __init__(self, target: Path) -> None:
        self._server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._server},rootmode=40000,user_id=0,group_id=0"
        _call("mount", b"hanging", str(target).encode(), b"fuse", 0, options.encode())

    def die(self) -> None:
        """The server ends; doing so again is no error."""
        if self._server >= 0:
            os.close(self._server)
            self._server = -1


def _call(name: str, *arguments: bytes | int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
