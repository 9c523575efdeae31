"""Makes the kernel see that a disk has grown, and the file system on it use the rest.

A virtio disk tells its new size by itself. A SCSI disk announces it too, but not every kernel reads it then, so it is
asked to. xfs and btrfs grow by their mount point and ext4 by its device; all three while they are mounted, which is
the only way that is used here. It does not decide whether and how far something has to grow.
Source: kernel drivers/scsi/scsi_sysfs.c (rescan); xfs_growfs(8), btrfs-filesystem(8), resize2fs(8).
"""

from __future__ import annotations

from pathlib import Path

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.errors import Internal
from kubevirt_csi.host import blocking
from kubevirt_csi.host.commands import Commands
from kubevirt_csi.host.rescanning import read_anew

RESCAN_SECONDS = 10.0

PROGRAMS = ("resize2fs", "xfs_growfs", "btrfs")


class HostResizing:
    """Implements ``ports.host.Resizing``; ``sysfs_root`` is where sysfs is mounted."""

    def __init__(self, commands: Commands, *, sysfs_root: Path) -> None:
        self._commands = commands
        self._sysfs = sysfs_root

    async def reread_size(self, disk: Disk) -> None:
        """Asks the kernel to read the size of a SCSI disk anew, or of the SCSI disks below a map.

        Other disks tell it by themselves.

        Raises:
            Unavailable: the disk does not answer.
        """
        await blocking.call(
            lambda: read_anew(self._sysfs, disk), what=f"rescanning disk {disk}", timeout=RESCAN_SECONDS
        )

    async def grow(self, disk: Disk, fs_type: str, *, mount_point: str) -> None:
        """Grows the file system that is mounted there until it fills its disk. Runs to its end in any case.

        Raises:
            Internal: the program failed or is missing, or this type cannot be grown.
        """
        by_type = {
            "ext4": ("resize2fs", disk.path),
            "xfs": ("xfs_growfs", "-d", mount_point),
            "btrfs": ("btrfs", "filesystem", "resize", "max", mount_point),
        }
        if fs_type not in by_type:
            raise Internal(f"the {fs_type} file system on disk {disk} cannot be grown by this driver")
        finished = await self._commands.run_to_end(*by_type[fs_type])
        if finished.code != 0:
            raise Internal(f"the {fs_type} on disk {disk}, mounted on {mount_point}, does not grow: {finished}")
