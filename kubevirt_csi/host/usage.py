"""Looks at mounted volumes: statfs for the figures, then the kernel's own word about the file system and its device.

Any of these calls may hang for ever on a dead device, so a look is one function in one thread of its own, and what
fails in it becomes part of the answer. statfs alone proves little: ext4 answers it from memory long after its disk has
died.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.host import blocking
from kubevirt_csi.host.devicehealth import DeviceHealth
from kubevirt_csi.ports.host import FileSystemUsage, Finding


class HostUsage:
    """Implements ``ports.host.Usage``.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: the folder of device nodes, that of the host.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path) -> None:
        self._devices = DeviceHealth(sysfs_root=sysfs_root, dev_root=dev_root)

    def look(self, mounted: MountEntry) -> asyncio.Future[Finding]:
        """Looks at what is mounted there, in a thread of its own that may never return."""
        return blocking.start(lambda: self._look(mounted), what=f"looking at {mounted.mount_point}")

    def _look(self, mounted: MountEntry) -> Finding:
        path = mounted.mount_point
        figures: FileSystemUsage | int | None = None
        try:
            found = Path(path).stat()
            if stat.S_ISBLK(found.st_mode):
                return self._look_at_raw(path, DeviceNumber(os.major(found.st_rdev), os.minor(found.st_rdev)))
            figures = _usage(os.statvfs(path))
        except OSError as error:
            broken: tuple[Ailment, ...] = (_broken(mounted, error),)
        else:
            broken = ()
        return Finding(figures=figures, ailments=(*broken, *self._devices.of_file_system(mounted)))

    def _look_at_raw(self, path: str, number: DeviceNumber) -> Finding:
        figures: int | None = None
        try:
            figures = _size(path)
        except OSError as error:
            text = f"the raw device cannot be opened: {error.strerror}, at {path}"
            broken: tuple[Ailment, ...] = (Ailment(Severity.INACCESSIBLE, Reason.IO_ERROR, text),)
        else:
            broken = ()
        return Finding(figures=figures, ailments=(*broken, *self._devices.of(number)))


def _usage(found: os.statvfs_result) -> FileSystemUsage:
    unit = found.f_frsize
    return FileSystemUsage(
        total_bytes=found.f_blocks * unit,
        available_bytes=found.f_bavail * unit,
        used_bytes=max(0, found.f_blocks - found.f_bfree) * unit,
        total_inodes=found.f_files,
        available_inodes=found.f_favail,
        used_inodes=max(0, found.f_files - found.f_ffree),
    )


def _size(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


def _broken(mounted: MountEntry, error: OSError) -> Ailment:
    """An xfs answers everything with EIO once it has shut itself down (fs/xfs/xfs_iops.c, xfs_super.c)."""
    if error.errno == errno.ESHUTDOWN or (mounted.fs_type == "xfs" and error.errno == errno.EIO):
        return Ailment(
            Severity.INACCESSIBLE,
            Reason.FILE_SYSTEM_SHUT_DOWN,
            f"its {mounted.fs_type} has shut itself down after an error ({error.strerror}). Look at this node's kernel "
            "log; it has to be unmounted (end all pods that use it) and mounted again",
        )
    return Ailment(Severity.INACCESSIBLE, Reason.IO_ERROR, f"its {mounted.fs_type} does not work: {error.strerror}")
