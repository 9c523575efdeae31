"""Figures of mounted volumes. statvfs on a dead device never returns: one call a path runs at a time, in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from kubevirt_csi.errors import Unavailable
from kubevirt_csi.host import blocking
from kubevirt_csi.ports.host import FileSystemUsage

T = TypeVar("T")

STAT_SECONDS = 5.0


class HostUsage:
    """Implements ``ports.host.Usage``; an answer that takes longer than ``seconds`` is none."""

    def __init__(self, *, seconds: float = STAT_SECONDS) -> None:
        self._seconds = seconds
        self._asking: set[str] = set()

    async def file_system(self, path: str) -> FileSystemUsage:
        """Of the file system mounted at the path.

        Raises:
            Unavailable: it does not answer, or an earlier question about this path has not been answered yet.
        """
        found = await self._ask(path, lambda: os.statvfs(path))
        unit = found.f_frsize
        return FileSystemUsage(
            total_bytes=found.f_blocks * unit,
            available_bytes=found.f_bavail * unit,
            used_bytes=max(0, found.f_blocks - found.f_bfree) * unit,
            total_inodes=found.f_files,
            available_inodes=found.f_favail,
            used_inodes=max(0, found.f_files - found.f_ffree),
        )

    async def device_bytes(self, path: str) -> int:
        """The size of the block device whose node is at the path.

        Raises:
            Unavailable: as for ``file_system``.
        """
        return await self._ask(path, lambda: _end_of(path))

    async def _ask(self, path: str, question: Callable[[], T]) -> T:
        if path in self._asking:
            raise Unavailable(
                f"{path} has not answered an earlier question about its usage; does its device still work?"
            )
        self._asking.add(path)

        def ask() -> T:
            try:
                return question()
            finally:
                self._asking.discard(path)

        return await blocking.call(ask, what=f"asking {path} for its usage", timeout=self._seconds)


def _end_of(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)
