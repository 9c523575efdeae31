"""NodeStageVolume and NodeUnstageVolume: locate the disk, prove what is on it, format it if it is blank, mount it once.

Nothing here is remembered between calls except how far a zero read has come: the mount table, the disk itself and the
node's records decide, so a repeat after a crash of anything does the rest and no more. Raw block volumes have nothing
to mount; for them staging means that the disk is here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain import mount_options, mountinfo
from kubevirt_csi.domain.access import Block, Capability, Mount
from kubevirt_csi.domain.blank import Evidence, Format, Refuse, UseAsIs, decide, how_to_override
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.domain.volumes import PublishContext
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Internal
from kubevirt_csi.observe import context
from kubevirt_csi.operations.locating import DISK_WAIT_SECONDS, Locating
from kubevirt_csi.operations.unmounting import unmount_all
from kubevirt_csi.ports.host import Device, Disks, Filesystems, Mounts, Places, Record, Records

log = structlog.get_logger(__name__)

RELEASE_SECONDS = 10.0
"""How long the kernel may take to let go of a disk after its last unmount."""
RELEASE_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume as Stage and Publish describe it."""

    volume_id: str
    staging_path: str
    capability: Capability
    context: PublishContext


class Staging:
    """Brings volumes to this node's staging paths and takes them away again."""

    def __init__(
        self,
        *,
        disks: Disks,
        filesystems: Filesystems,
        mounts: Mounts,
        places: Places,
        records: Records,
        disk_wait_seconds: float = DISK_WAIT_SECONDS,
        release_seconds: float = RELEASE_SECONDS,
    ) -> None:
        self._disks = disks
        self._filesystems = filesystems
        self._mounts = mounts
        self._places = places
        self._records = records
        self._disk_wait_seconds = disk_wait_seconds
        self._release_seconds = release_seconds
        self._locating = Locating(disks=disks, mounts=mounts, places=places)
        self._read_as_zero: dict[tuple[str, Disk], int] = {}

    async def stage(self, volume: Volume) -> Disk:
        """Makes the volume usable on this node, and returns its disk. A repeat changes nothing.

        Raises:
            Unavailable: the disk is not there yet.
            FailedPrecondition: its content, or something else at the staging path, forbids it.
            AlreadyExists: it is staged in an incompatible way.
        """
        disk = await self._locating.disk(
            volume_id=volume.volume_id, serial=volume.context.serial, wait_seconds=self._disk_wait_seconds
        )
        match volume.capability.access:
            case Block():
                await self._remember(volume)
            case Mount() as mount:
                await self._stage_mount(volume, mount, disk)
        return disk

    async def unstage(self, *, volume_id: str, staging_path: str) -> None:
        """Unmounts the volume and proves that nothing uses its disk any more. One that is not staged is no error.

        Raises:
            FailedPrecondition: it is mounted elsewhere, or something else holds its disk; nothing was unmounted then.
        """
        path = self._places.canonical(staging_path)
        volume_disks = await self._disks_of(volume_id, path)
        for disk in volume_disks:
            elsewhere = [entry for entry in await self._locating.mounts_of(disk) if entry.mount_point != path]
            if elsewhere:
                raise FailedPrecondition(
                    f"volume {volume_id} (disk {disk}) is still mounted at {mountinfo.paths(elsewhere)}; unpublish it "
                    "there first"
                )
        await unmount_all(self._mounts, path)
        self._read_as_zero = {key: at for key, at in self._read_as_zero.items() if key[0] != volume_id}
        for disk in volume_disks:
            await self._prove_released(volume_id, disk)

    async def _stage_mount(self, volume: Volume, mount: Mount, disk: Disk) -> None:
        path = self._places.canonical(volume.staging_path)
        mounted = await self._mounted_at(path)
        if mounted is not None:
            await self._require_ours(volume, mounted, disk, mount)
            return
        async with self._disks.opened(disk) as device:
            fs_type = await self._prepare(device, volume, mount)
            await self._remember(volume)
            await device.verify()
            context.mark_written()
            await self._mounts.mount(
                device_path=disk.path,
                target=path,
                fs_type=fs_type,
                options=mount_options.for_file_system(mount.flags, fs_type=fs_type),
            )
        mounted = (await self._mounts.table()).top(path)
        if mounted is None or mounted.device != disk.number:
            raise Internal(f"volume {volume.volume_id} was mounted on {path}, but the kernel shows {mounted} there")

    async def _mounted_at(self, path: str) -> MountEntry | None:
        """The mount at the staging path, after taking away those of disks that have left this node."""
        mounted = (await self._mounts.table()).top(path)
        if mounted is None or mounted.device.major == 0:  # no disk, but a tmpfs or the like
            return mounted
        if disk_rules.numbered(await self._disks.all(), mounted.device) is not None:
            return mounted
        log.warning("stale mount removed", path=path, device=str(mounted.device))
        context.mark_written()
        await unmount_all(self._mounts, path)
        return None

    async def _require_ours(self, volume: Volume, mounted: MountEntry, disk: Disk, mount: Mount) -> None:
        at = f"volume {volume.volume_id}: {mounted.mount_point}"
        if mounted.device != disk.number:
            other = disk_rules.numbered(await self._disks.all(), mounted.device)
            raise FailedPrecondition(
                f"{at} is a mount of {other or mounted.source} ({mounted.device}), not of the volume's disk {disk}; "
                "unmount it"
            )
        if mount.fs_type and mounted.fs_type != mount.fs_type:
            raise AlreadyExists(f"{at} is staged as {mounted.fs_type}, but {mount.fs_type} is asked for now")
        missing = mount_options.missing(mount.flags, present=mounted.options | mounted.super_options)
        if missing:
            raise AlreadyExists(f"{at} is staged without the options {', '.join(missing)} that are asked for now")

    async def _prepare(self, device: Device, volume: Volume, mount: Mount) -> str:
        """Sees to it that there is a file system on the disk, and returns its type."""
        decision = decide(await self._evidence(device, volume, mount))
        match decision:
            case Refuse(reason):
                raise FailedPrecondition(f"volume {volume.volume_id}: {reason}")
            case UseAsIs(fs_type):
                if not await device.in_use():
                    await self._filesystems.check(device.disk, fs_type)
                return fs_type
            case Format():
                await self._format(device, volume, decision)
                return volume.capability.fs_type

    async def _evidence(self, device: Device, volume: Volume, mount: Mount) -> Evidence:
        return Evidence(
            volume_id=volume.volume_id,
            disk=device.disk,
            probe=await self._filesystems.probe(device.disk),
            edges_zero=await device.edges_are_zero(),
            mark=await device.read_mark(),
            recorded=await self._records.recall(volume.volume_id) is not None,
            context=volume.context,
            requested=mount.fs_type,
        )

    async def _format(self, device: Device, volume: Volume, permission: Format) -> None:
        """Makes the file system between a mark that says "started" and its removal, both flushed to the disk."""
        fs_type, disk = volume.capability.fs_type, device.disk
        if await device.in_use():
            raise FailedPrecondition(f"volume {volume.volume_id}: disk {disk} is not formatted, something has it open")
        if permission.after_zero_read:
            await self._prove_zero(device, volume)
        log.warning("formatting", volume_id=volume.volume_id, disk=str(disk), type=fs_type, reason=permission.reason)
        context.progress(f"{fs_type} to be made on disk {disk}")
        await device.verify()
        context.mark_written()
        await device.write_mark(volume.volume_id)
        await self._filesystems.make(disk, fs_type)
        await device.flush()
        await device.verify()
        made = await self._filesystems.probe(disk)
        if made.kind != fs_type:
            raise Internal(f"volume {volume.volume_id}: {fs_type} was made on disk {disk}, but {made} is found there")
        await device.erase_mark(volume.volume_id)

    async def _prove_zero(self, device: Device, volume: Volume) -> None:
        """Reads the whole disk, going on where an attempt that failed for another reason has stopped."""
        disk = device.disk
        key = (volume.volume_id, disk)
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
                f"volume {volume.volume_id} has been used before, and its disk {disk} shows no file system but holds "
                f"data after byte {position}; it is not formatted. {how_to_override(volume.context)}"
            )

    async def _remember(self, volume: Volume) -> None:
        """From here on the volume counts as used on this node, whatever becomes of this call."""
        await self._records.remember(Record(volume_id=volume.volume_id, serial=volume.context.serial))

    async def _disks_of(self, volume_id: str, path: str) -> tuple[Disk, ...]:
        """The disks that may be the volume's: that at the staging path, and those with the recorded serial."""
        present = await self._disks.all()
        mounted = {entry.device for entry in (await self._mounts.table()).at(path)}
        record = await self._records.recall(volume_id)
        shown = disk_rules.showing(present, record.serial) if record is not None else ()
        return tuple(disk for disk in present if disk.number in mounted or disk in shown)

    async def _prove_released(self, volume_id: str, disk: Disk) -> None:
        deadline = asyncio.get_running_loop().time() + self._release_seconds
        async with self._disks.opened(disk) as device:
            while await device.in_use():
                if asyncio.get_running_loop().time() >= deadline:
                    holders = (
                        f" by {', '.join(disk.holders)}" if disk.holders else ", perhaps in another mount namespace"
                    )
                    raise FailedPrecondition(
                        f"volume {volume_id} is unmounted here, but its disk {disk} is still in use{holders}"
                    )
                context.progress(f"the kernel to release disk {disk}")
                await asyncio.sleep(RELEASE_PAUSE_SECONDS)
            await device.flush()
