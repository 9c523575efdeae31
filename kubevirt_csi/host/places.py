"""The folders and files that mounts are put on: made empty, removed only when empty, never deleted recursively.

A target that holds something is evidence: of a pod that wrote before its volume was mounted, or of a mount that was
believed to be gone. It is kept, and a person has to look.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.errors import FailedPrecondition, Internal
from kubevirt_csi.host import blocking

T = TypeVar("T")

LOOK_SECONDS = 10.0

# What lstat says of a mount whose device has gone; there is something, though it cannot be looked at.
_BROKEN = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN)


class HostPlaces:
    """Implements ``ports.host.Places``."""

    def canonical(self, path: str) -> str:
        """The path as the mount table spells it: symbolic links in its folder are resolved, its own name is not."""
        plain = Path(os.path.normpath(path))
        return str(plain.parent.resolve() / plain.name)

    async def exists(self, path: str) -> bool:
        """Whether there is anything at the path, even a mount that no longer answers."""

        def look() -> bool:
            try:
                return _lstat(path) is not None
            except OSError as error:
                if error.errno in _BROKEN:
                    return True
                raise

        return await _in_thread(look, path)

    async def device_at(self, path: str) -> DeviceNumber | None:
        """The number of the device node at this path; None when there is something else or nothing.

        A mounted file system that no longer answers is something else: device nodes are not on volumes.
        """

        def look() -> DeviceNumber | None:
            try:
                return device_number(path)
            except OSError as error:
                if error.errno in _BROKEN:
                    return None
                raise

        return await _in_thread(look, path)

    async def make_directory(self, path: str) -> None:
        """Makes an empty folder; an empty one that exists is no error. The parent must exist.

        Raises:
            FailedPrecondition: something is there already.
            Internal: it cannot be made.
        """
        await _in_thread(lambda: _make(path, lambda: Path(path).mkdir(mode=0o750), wanted=stat.S_ISDIR), path)

    async def make_file(self, path: str) -> None:
        """Makes an empty file; an empty one that exists is no error. The parent must exist.

        Raises:
            FailedPrecondition: something is there already.
            Internal: it cannot be made.
        """
        create = Path(path).touch
        await _in_thread(lambda: _make(path, lambda: create(mode=0o640, exist_ok=False), wanted=stat.S_ISREG), path)

    async def remove(self, path: str) -> None:
        """Removes an empty folder or an empty regular file; a path that is gone is no error.

        Raises:
            Internal: anything else is there; it is kept.
        """
        await _in_thread(lambda: _remove(path), path)


def device_number(path: str) -> DeviceNumber | None:
    """The number of the device node at this path; None when there is something else or nothing. Blocks."""
    found = _lstat(path)
    if found is None or not stat.S_ISBLK(found.st_mode):
        return None
    return DeviceNumber(os.major(found.st_rdev), os.minor(found.st_rdev))


def _lstat(path: str) -> os.stat_result | None:
    try:
        return Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_empty(path: str, found: os.stat_result) -> bool:
    if stat.S_ISDIR(found.st_mode):
        return next(Path(path).iterdir(), None) is None
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def _make(path: str, create: Callable[[], None], *, wanted: Callable[[int], bool]) -> None:
    try:
        create()
    except FileExistsError as error:
        found = _lstat(path)
        if found is None or not wanted(found.st_mode) or not _is_empty(path, found):
            raise FailedPrecondition(
                f"{path} exists and is not empty, or not of the right kind; a mount would hide what it holds. "
                "Move it away"
            ) from error
    except OSError as error:
        raise Internal(f"{path} cannot be made: {error}") from error


def _remove(path: str) -> None:
    found = _lstat(path)
    if found is None:
        return
    if not _is_empty(path, found):
        raise Internal(
            f"{path} is not mounted, and is neither an empty folder nor an empty file: it is kept. Look at what it "
            "holds (something may have written to it before the volume was mounted), then move it away"
        )
    try:
        Path(path).rmdir() if stat.S_ISDIR(found.st_mode) else Path(path).unlink()
    except OSError as error:
        raise Internal(f"{path} cannot be removed: {error}") from error


async def _in_thread(look: Callable[[], T], path: str) -> T:
    return await blocking.call(look, what=f"looking at {path}", timeout=LOOK_SECONDS)
