"""NodeStageVolume: locate the disk, see to a file system on it (``formatting``), mount it once.

Nothing here is remembered between calls: the mount table, the disk itself and the node's records decide, so a repeat
after a crash of anything does the rest and no more. Raw block volumes have nothing to mount; for them staging means
that the disk is here. The way back is ``unstaging``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain import mount_options, selinux
from kubevirt_csi.domain.access import Block, Capability, Mount
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.domain.volumes import PublishContext
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Internal
from kubevirt_csi.observe import context
from kubevirt_csi.operations.formatting import Formatting, Wanted
from kubevirt_csi.operations.growing import Growing
from kubevirt_csi.operations.locating import DISK_WAIT_SECONDS, Locating
from kubevirt_csi.operations.unmounting import mounted_at, unmount_all
from kubevirt_csi.ports.host import Disks, Mounts, Places, Record, Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume as Stage and Publish describe it."""

    volume_id: str
    staging_path: str
    capability: Capability
    context: PublishContext


class Staging:
    """Brings volumes to this node's staging paths."""

    def __init__(
        self,
        *,
        disks: Disks,
        formatting: Formatting,
        growing: Growing,
        mounts: Mounts,
        places: Places,
        records: Records,
        disk_wait_seconds: float = DISK_WAIT_SECONDS,
    ) -> None:
        self._disks = disks
        self._formatting = formatting
        self._growing = growing
        self._mounts = mounts
        self._places = places
        self._records = records
        self._disk_wait_seconds = disk_wait_seconds
        self._locating = Locating(disks=disks, mounts=mounts, places=places)

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
                await self._growing.fill(volume.volume_id, disk)
        return disk

    async def _stage_mount(self, volume: Volume, mount: Mount, disk: Disk) -> None:
        path = self._places.canonical(volume.staging_path)
        mounted = await mounted_at(path, mounts=self._mounts, disks=self._disks, places=self._places)
        if mounted is not None:
            await self._require_ours(volume, mounted, disk, mount)
            return
        await self._require_same_context(volume, mount, disk)
        await self._places.make_directory(path)
        async with self._disks.opened(disk) as device:
            fs_type = await self._formatting.prepare(
                device, Wanted(volume_id=volume.volume_id, fs_type=mount.fs_type, context=volume.context)
            )
            await self._remember(volume)
            await device.verify()
            context.mark_written()
            await self._mounts.mount(
                device_path=disk.path,
                target=path,
                fs_type=fs_type,
                options=mount_options.for_file_system(mount.flags, fs_type=fs_type, write_protected=disk.read_only),
            )
        await self._verify(volume, mount, disk, path=path)

    async def _verify(self, volume: Volume, mount: Mount, disk: Disk, *, path: str) -> None:
        """Compares what the kernel shows with what mount(8) was asked for; what is not as it should be is taken away.

        mount(8) leaves a SELinux context out without a word when it does not see that SELinux is on.
        """
        mounted = (await self._mounts.table()).top(path)
        if mounted is None or mounted.device != disk.number:
            await unmount_all(self._mounts, path)
            raise Internal(
                f"volume {volume.volume_id} was mounted on {path} from disk {disk}, but the kernel shows {mounted} "
                "there; it was taken away again"
            )
        left_out = selinux.differing(mount.flags, present=mounted.super_options)
        if left_out:
            await unmount_all(self._mounts, path)
            raise FailedPrecondition(
                f"volume {volume.volume_id} was mounted on {path}, but without {', '.join(left_out)}, and was taken "
                "away again: mount does not see that SELinux is on. The node plugin needs the host's /sys/fs/selinux "
                "and /etc/selinux, see deploy/tenant/components/selinux; without them seLinuxMount has to stay false"
            )

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
        missing = mount_options.missing(mount.flags, present=mounted.options)
        if missing:
            raise AlreadyExists(f"{at} is staged without the options {', '.join(missing)} that are asked for now")
        _require_context(volume, mount, mounted)

    async def _require_same_context(self, volume: Volume, mount: Mount, disk: Disk) -> None:
        """A file system has one SELinux context in all its mounts, also in one of another driver version's."""
        for entry in (await self._mounts.table()).of(disk.number):
            _require_context(volume, mount, entry)

    async def _remember(self, volume: Volume) -> None:
        """From here on the volume counts as used on this node, whatever becomes of this call."""
        await self._records.remember(Record(volume_id=volume.volume_id, serial=volume.context.serial))


def _require_context(volume: Volume, mount: Mount, mounted: MountEntry) -> None:
    for wanted, present in selinux.differing(mount.flags, present=mounted.super_options).items():
        raise AlreadyExists(
            f"volume {volume.volume_id} is mounted at {mounted.mount_point} with SELinux context {present or 'none'}, "
            f"but {wanted} is asked for now; a volume has one context on a node until its last pod there has ended"
        )
