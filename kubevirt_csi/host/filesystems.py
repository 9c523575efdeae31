"""Programs that know file systems: blkid, mkfs, fsck; and the one set of arguments that each is called with.

The features are fixed here and not left to the tools' defaults: a new mkfs makes file systems that the kernel of
another tenant node, or the same one after a rollback, cannot mount. What is here is mountable since kernel 4.18.
Nothing is discarded: the disk is blank, and a discard of a large thin disk takes minutes.
"""

from __future__ import annotations

import structlog

from kubevirt_csi.domain.blank import Probe, Probed
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable
from kubevirt_csi.host.commands import Commands, Finished

log = structlog.get_logger(__name__)

PROBE_SECONDS = 60.0

EXT4_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum"
)
"""After ``none`` the complete list, so that /etc/mke2fs.conf cannot add to it (orphan_file needs kernel 5.15)."""

XFS_METADATA = "crc=1,finobt=1,rmapbt=0,reflink=1,bigtime=0,inobtcount=0"
XFS_INODES = "sparse=1,nrext64=0"

_EXT4 = ("mkfs.ext4", "-F", "-q", "-b", "4096", "-I", "256", "-m", "0", "-O", EXT4_FEATURES)
_MAKE = {
    "ext4": (*_EXT4, "-E", "nodiscard,lazy_itable_init=1"),
    "xfs": ("mkfs.xfs", "-f", "-q", "-K", "-m", XFS_METADATA, "-i", XFS_INODES),
}

# fsck(8): the exit code is the sum of these. 1 and 2 mean repaired, 8 and above that it did not do its work.
_UNCORRECTED = 4
_REPAIRED = 1 | 2

PROGRAMS = ("blkid", "mkfs.ext4", "mkfs.xfs", "fsck.ext4")

_BLKID_FOUND = 0
_BLKID_NOTHING = 2
_BLKID_AMBIVALENT = 8


class HostFilesystems:
    """Implements ``ports.host.Filesystems``."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def probe(self, disk: Disk) -> Probe:
        """What is on the disk, by blkid's low-level probing, which reads the device and no cache.

        Raises:
            Unavailable: the device could not be read.
        """
        finished = await self._commands.run("blkid", "-p", "-o", "export", disk.path, timeout=PROBE_SECONDS)
        if finished.code == _BLKID_FOUND:
            return _found(finished)
        # blkid also says "nothing" of what it cannot open or read, but then it usually complains.
        if finished.code == _BLKID_NOTHING and not finished.errors.strip():
            return Probe(result=Probed.NOTHING)
        if finished.code == _BLKID_AMBIVALENT:
            return Probe(result=Probed.AMBIVALENT)
        raise Unavailable(f"disk {disk} cannot be probed: {finished}")

    async def make(self, disk: Disk, fs_type: str) -> None:
        """Makes a file system, whatever is there. Runs to its end even when the caller is cancelled.

        Raises:
            Internal: mkfs failed; the disk may hold half a file system.
        """
        finished = await self._commands.run_to_end(*_MAKE[fs_type], disk.path)
        if finished.code != 0:
            raise Internal(f"making {fs_type} on disk {disk} failed: {finished}")

    async def check(self, disk: Disk, fs_type: str) -> None:
        """Repairs an ext4 file system as far as that is safe. xfs needs no check: its log is replayed at mount.

        Raises:
            FailedPrecondition: damage is left that a person has to look at.
        """
        if fs_type != "ext4":
            return
        finished = await self._commands.run_to_end("fsck.ext4", "-p", disk.path)
        if finished.code & _UNCORRECTED:
            raise FailedPrecondition(
                f"the ext4 file system on disk {disk} has errors that are not safe to repair unattended; it was not "
                f"mounted. Run fsck.ext4 by hand on this node. {finished}"
            )
        if finished.code & ~_REPAIRED:
            log.warning("file system not checked", disk=str(disk), reason=str(finished))
        elif finished.code:
            log.warning("file system repaired", disk=str(disk), output=finished.output)


def _found(finished: Finished) -> Probe:
    tags = dict(line.partition("=")[::2] for line in finished.output.splitlines())
    kind = tags.get("TYPE") or tags.get("PTTYPE") or ""
    plain = "PTTYPE" not in tags
    return Probe(result=Probed.FOUND, kind=kind, is_file_system=plain and tags.get("USAGE") == "filesystem")
