"""A file system on an opened disk: find out what is there, make one if the disk is provably blank, refuse otherwise.

The decision itself is ``domain.blank``; here its evidence is gathered and its answer carried out. It knows nothing of
mounts and paths. The surprising fact: what looks like a finished file system is made once more as long as our mark of a
started format is there, because then nothing was ever mounted, and mkfs may have been killed after its superblock.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from kubevirt_csi.domain import mkfs
from kubevirt_csi.domain.access import DEFAULT_FILE_SYSTEM
from kubevirt_csi.domain.blank import Evidence, Format, Probed, Refuse, UseAsIs, decide, how_to_override
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.telltales import telltales
from kubevirt_csi.domain.volumes import PublishContext
from kubevirt_csi.errors import FailedPrecondition, Internal
from kubevirt_csi.observe import context
from kubevirt_csi.ports.host import Device, Filesystems, Records

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The file system that a volume is to have; ``fs_type`` as it was asked for, empty for the driver's choice."""

    volume_id: str
    fs_type: str
    context: PublishContext


class Formatting:
    """Sees to it that there are file systems on disks."""

    def __init__(self, *, filesystems: Filesystems, records: Records) -> None:
        self._filesystems = filesystems
        self._records = records
        self._read_as_zero: dict[tuple[str, Disk], int] = {}

    async def prepare(self, device: Device, wanted: Wanted) -> str:
        """Returns the type of the file system on the disk, which is made if the disk is blank.

        Raises:
            FailedPrecondition: the disk holds something else, less than its file system, or may not be formatted.
            InvalidArgument: it is to be formatted with options that are not allowed.
            Unavailable: it cannot be read, or became another disk.
            Internal: mkfs failed.
        """
        decision = decide(await self._evidence(device, wanted))
        match decision:
            case Refuse(reason):
                raise FailedPrecondition(f"volume {wanted.volume_id}: {reason}")
            case UseAsIs(fs_type):
                await self._require_whole(device.disk, fs_type, wanted)
                if not device.disk.read_only and not await device.in_use():
                    await self._filesystems.check(device.disk, fs_type)
                return fs_type
            case Format():
                return await self._format(device, wanted, decision)

    def forget(self, volume_id: str) -> None:
        """The volume leaves this node: what was read of its disk says nothing about the next time."""
        self._read_as_zero = {key: at for key, at in self._read_as_zero.items() if key[0] != volume_id}

    async def _evidence(self, device: Device, wanted: Wanted) -> Evidence:
        disk = device.disk
        probe = await self._filesystems.probe(disk)
        nothing = probe.result is Probed.NOTHING  # else the disk is not blank, and need not be read to prove it
        return Evidence(
            volume_id=wanted.volume_id,
            disk=disk,
            probe=probe,
            written=await device.first_written(telltales(disk.size_bytes)) if nothing else None,
            mark=await self._mark(device, wanted),
            recorded=await self._records.recall(wanted.volume_id) is not None,
            context=wanted.context,
            requested=wanted.fs_type,
        )

    async def _mark(self, device: Device, wanted: Wanted) -> str | None:
        mark = await device.read_mark()
        if mark is None and (earlier := _earlier_size(device.disk, wanted)):
            mark = await device.read_mark(of_size=earlier)
        return mark

    async def _require_whole(self, disk: Disk, fs_type: str, wanted: Wanted) -> None:
        """A file system that reaches over the end of its disk has lost its end: every use of it makes that worse."""
        found = await self._filesystems.superblock(disk, fs_type)
        if found.size_bytes > disk.size_bytes:
            raise FailedPrecondition(
                f"volume {wanted.volume_id}: the {found.fs_type} on disk {disk} claims {found.size_bytes} bytes, but "
                f"the disk has {disk.size_bytes}; it was not mounted. Was the image in the infra cluster cut, or is it "
                "another disk's?"
            )

    async def _format(self, device: Device, wanted: Wanted, permission: Format) -> str:
        """Makes the file system between a mark that says "started" and its removal, both flushed to the disk."""
        fs_type, disk = wanted.fs_type or DEFAULT_FILE_SYSTEM, device.disk
        options = mkfs.arguments(wanted.context.mkfs_options, fs_type)
        if await device.in_use():
            raise FailedPrecondition(f"volume {wanted.volume_id}: disk {disk} is not formatted, something has it open")
        if permission.after_zero_read:
            await self._prove_zero(device, wanted)
        log.warning(
            "formatting",
            volume_id=wanted.volume_id,
            disk=str(disk),
            type=fs_type,
            options=" ".join(options),
            reason=permission.reason,
        )
        await device.verify()
        context.mark_written()
        await device.write_mark(wanted.volume_id)
        if earlier := _earlier_size(disk, wanted):
            await device.erase_mark(wanted.volume_id, of_size=earlier)
        if permission.wipe:
            await self._filesystems.wipe(disk)
        await self._filesystems.make(disk, fs_type, options=options)
        await device.flush()
        await device.verify()
        made = await self._filesystems.probe(disk)
        if made.kind != fs_type or not made.is_file_system:
            raise Internal(f"volume {wanted.volume_id}: {fs_type} was made on disk {disk}, but {made} is found there")
        await device.erase_mark(wanted.volume_id)
        return fs_type

    async def _prove_zero(self, device: Device, wanted: Wanted) -> None:
        """Reads the whole disk, going on where an attempt that failed for another reason has stopped."""
        disk = device.disk
        key = (wanted.volume_id, disk)
        position = self._read_as_zero.pop(key, 0)
        try:
            async for reached in device.zeroes(position):
                position = reached
                context.progress(f"a full read of disk {disk}: {100 * position // disk.size_bytes} % is zero")
        except BaseException:
            self._read_as_zero[key] = position
            raise
        if position < disk.size_bytes:
            raise FailedPrecondition(
                f"volume {wanted.volume_id} has been used before, and its disk {disk} shows no file system but holds "
                f"data after byte {position}; it is not formatted. {how_to_override(wanted.context)}"
            )


def _earlier_size(disk: Disk, wanted: Wanted) -> int:
    """The bytes that the disk had when it was attached, if it has grown since; else 0.

    The mark lies near the end, so a mkfs that was killed before the growth has left it where that end was.
    """
    promised = wanted.context.size_bytes
    return promised if promised < disk.size_bytes else 0
