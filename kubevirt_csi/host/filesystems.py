"""Programs that know file systems: blkid, wipefs, mkfs, fsck, and the bytes of superblocks.

It does what it is told to whatever disk it is given; whether that is right was decided before. A program that changes
a disk is never cut in half, and only a few of them run at once: those that have to wait say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from kubevirt_csi.domain.blank import Probe, Probed
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable
from kubevirt_csi.host import devices, mkfs, superblocks
from kubevirt_csi.host.commands import Commands, Finished
from kubevirt_csi.observe import context
from kubevirt_csi.ports.host import SuperBlock

log = structlog.get_logger(__name__)

Pinned = Callable[[Disk], AbstractAsyncContextManager[int]]

PROBE_SECONDS = 60.0

PARALLEL = 4
"""How many programs make or repair file systems at once. Each keeps its disk busy and may take hundreds of MiB (a
repair has the bitmaps of the whole disk in memory), and a node that starts with a hundred volumes would have as many.
"""

# fsck(8): the exit code is the sum of these. 1 and 2 mean repaired, 8 and above that it did not do its work.
_UNCORRECTED = 4
_REPAIRED = 1 | 2

PROGRAMS = ("blkid", "wipefs", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "fsck.ext4")

_BLKID_FOUND = 0
_BLKID_NOTHING = 2
_BLKID_AMBIVALENT = 8


class HostFilesystems:
    """Implements ``ports.host.Filesystems``; ``pinned`` opens a disk for as long as a program works on it."""

    def __init__(self, commands: Commands, *, parallel: int = PARALLEL, pinned: Pinned = devices.pinned) -> None:
        self._commands = commands
        self._pinned = pinned
        self._parallel = parallel
        self._slots = asyncio.Semaphore(parallel)

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

    async def superblock(self, disk: Disk, fs_type: str) -> SuperBlock:
        """What the file system of this type on the disk claims, read past every cache.

        Raises:
            FailedPrecondition: the disk has no superblock of this type, or it is one that is not known here.
            Unavailable: the device could not be read.
        """
        found = superblocks.found_in(await devices.read(disk, start=0, length=superblocks.HEAD_BYTES))
        # Another type's may lie in a file: an image of a disk can begin at any block.
        of_type = next((block for block in found if block.fs_type == fs_type), None)
        if of_type is None:
            names = " and ".join(block.fs_type for block in found) or "none that is known here"
            raise FailedPrecondition(f"disk {disk} has no superblock of {fs_type}; found: {names}")
        return of_type

    async def make(self, disk: Disk, fs_type: str, *, options: tuple[str, ...] = ()) -> None:
        """Makes a file system, whatever is there. Runs to its end even when the caller is cancelled.

        mkfs gets the disk as it was opened here, not its name: in the place of a disk that has left, mkfs.ext4 makes a
        file, after which no disk gets that device node any more.

        Raises:
            Unavailable: the disk has left, or another has its device node.
            Internal: mkfs failed; the disk may hold half a file system.
        """
        async with self._slot(f"{fs_type} to be made on disk {disk}"), self._pinned(disk) as fd:
            command = mkfs.command(f"/proc/self/fd/{fd}", fs_type, options, size_bytes=disk.size_bytes)
            finished = await self._commands.run_to_end(*command, fds=(fd,))
        if finished.code != 0:
            raise Internal(f"making {fs_type} on disk {disk} failed: {finished}")

    async def wipe(self, disk: Disk) -> None:
        """Takes off the disk, by wipefs, every signature that ``probe`` would find.

        Raises:
            Internal: it failed; some may be left.
        """
        finished = await self._commands.run_to_end("wipefs", "--all", "--quiet", disk.path)
        if finished.code != 0:
            raise Internal(f"the old signatures cannot be taken off disk {disk}: {finished}")

    async def check(self, disk: Disk, fs_type: str) -> None:
        """Repairs an ext4 file system as far as that is safe. The kernel does so itself for xfs and btrfs at a mount.

        Exit codes by their bits, see fsck(8).

        Raises:
            FailedPrecondition: damage is left that a person has to look at.
            Unavailable: fsck was killed; it may have been in the middle of a repair.
        """
        if fs_type != "ext4":
            return
        async with self._slot(f"the ext4 on disk {disk} to be checked"):
            finished = await self._commands.run_to_end("fsck.ext4", "-p", disk.path)
        if finished.code < 0:
            raise Unavailable(f"the ext4 file system on disk {disk} was not checked to the end: {finished}")
        if finished.code & _UNCORRECTED:
            raise FailedPrecondition(
                f"the ext4 file system on disk {disk} has errors that are not safe to repair unattended; it was not "
                f"mounted. Run fsck.ext4 by hand on this node. {finished}"
            )
        if finished.code & ~_REPAIRED:
            log.warning("file system not checked", disk=str(disk), reason=str(finished))
        elif finished.code:
            log.warning("file system repaired", disk=str(disk), output=finished.output)

    @asynccontextmanager
    async def _slot(self, waiting_for: str) -> AsyncIterator[None]:
        """One of the few places for programs that work on a whole disk."""
        if self._slots.locked():
            context.progress(f"{waiting_for}, after one of the {self._parallel} that are being made or checked now")
        async with self._slots:
            context.progress(waiting_for)
            yield


def _found(finished: Finished) -> Probe:
    tags = dict(line.partition("=")[::2] for line in finished.output.splitlines())
    kind = tags.get("TYPE") or tags.get("PTTYPE") or ""
    plain = "PTTYPE" not in tags
    return Probe(result=Probed.FOUND, kind=kind, is_file_system=plain and tags.get("USAGE") == "filesystem")
