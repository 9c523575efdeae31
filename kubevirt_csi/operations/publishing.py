"""NodePublishVolume and NodeUnpublishVolume: show a staged volume to one pod, and stop showing it.

Publish does not believe that staging happened: after a reboot, or after taking over from another driver version,
kubelet may publish without staging again. So it stages first, which does nothing where nothing is to be done, and binds
only what is proven to be the volume. A plain folder is never bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain import mount_options, mountinfo
from kubevirt_csi.domain.access import AccessMode, Block, Mount
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.domain.serials import of_predecessor
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Internal
from kubevirt_csi.observe import context
from kubevirt_csi.operations.locating import Locating
from kubevirt_csi.operations.staging import Staging, Volume
from kubevirt_csi.operations.trimming import Trimming
from kubevirt_csi.operations.unmounting import mounted_at, unmount_all
from kubevirt_csi.ports.host import Disks, Mounts, Places, Record, Records

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A volume, and where and how a pod wants to see it."""

    volume: Volume
    target_path: str
    read_only: bool

    @property
    def flags(self) -> frozenset[str]:
        """The restrictions that the mount at the target must have: of the mount options those of a single mount.

        Read-only is asked for by the pod, or implied by the access mode.
        """
        capability = self.volume.capability
        options = capability.access.flags if isinstance(capability.access, Mount) else ()
        return mount_options.per_mount((*options, "ro") if self.read_only or capability.mode.read_only else options)

    @property
    def must_be_read_only(self) -> bool:
        """Whether the pod must not be able to write."""
        return "ro" in self.flags


class Publishing:
    """Shows volumes at target paths."""

    def __init__(
        self,
        *,
        staging: Staging,
        trimming: Trimming,
        disks: Disks,
        mounts: Mounts,
        places: Places,
        records: Records,
    ) -> None:
        self._staging = staging
        self._trimming = trimming
        self._disks = disks
        self._mounts = mounts
        self._places = places
        self._records = records
        self._locating = Locating(disks=disks, mounts=mounts, places=places)

    async def publish(self, publication: Publication) -> None:
        """Shows the volume at the target. A repeat changes nothing.

        Raises:
            FailedPrecondition: something else is at the target, or the access mode forbids a second one.
            AlreadyExists: the volume is published at this target in another way.
            And all that staging raises.
        """
        disk = await self._staging.stage(publication.volume)
        target = self._places.canonical(publication.target_path)
        match publication.volume.capability.access:
            case Mount():
                await self._publish_mount(publication, disk, target)
            case Block():
                await self._publish_block(publication, disk, target)

    async def unpublish(self, *, volume_id: str, target_path: str) -> None:
        """Takes the volume away from the target and removes the target; one that is gone is no error.

        Raises:
            FailedPrecondition: a process still uses it.
            Internal: something else than a mount is there; it is kept.
        """
        target = self._places.canonical(target_path)
        await self._remember_disk_at(volume_id, target)
        await self._trimming.stop(volume_id)
        await unmount_all(self._mounts, target)
        await self._places.remove(target)

    async def _publish_mount(self, publication: Publication, disk: Disk, target: str) -> None:
        mounted = await mounted_at(target, mounts=self._mounts, disks=self._disks, places=self._places)
        if mounted is not None:
            _require_same(publication, mounted, disk)
            return
        _require_writable(publication, disk)
        await self._refuse_second_target(publication, disk)
        await self._places.make_directory(target)
        context.mark_written()
        source = self._places.canonical(publication.volume.staging_path)
        await self._mounts.bind(source=source, target=target, read_only=publication.must_be_read_only)
        mounted = (await self._mounts.table()).top(target)
        if mounted is None or mounted.device != disk.number or not publication.flags <= mounted.options:
            await unmount_all(self._mounts, target)
            raise Internal(
                f"volume {publication.volume.volume_id} was bound to {target}, but the kernel shows {mounted} there; "
                "it was taken away again"
            )

    async def _publish_block(self, publication: Publication, disk: Disk, target: str) -> None:
        volume_id = publication.volume.volume_id
        if publication.must_be_read_only and not disk.read_only:
            raise FailedPrecondition(
                f"volume {volume_id}: disk {disk} is attached read-write, and a raw device cannot be made read-only "
                "for one pod. Publish it read-write, or use volumeMode Filesystem"
            )
        if await mounted_at(target, mounts=self._mounts, disks=self._disks, places=self._places) is not None:
            await self._require_device(volume_id, disk, target)
            return
        _require_writable(publication, disk)
        await self._refuse_second_target(publication, disk)
        await self._places.make_file(target)
        async with self._disks.opened(disk) as device:
            await device.verify()
            context.mark_written()
            await self._mounts.bind(source=disk.path, target=target, read_only=False)
        if await self._places.device_at(target) != disk.number:
            await unmount_all(self._mounts, target)
            raise Internal(f"volume {volume_id} was bound to {target}, but that is not disk {disk}; it was taken away")

    async def _require_device(self, volume_id: str, disk: Disk, target: str) -> None:
        found = await self._places.device_at(target)
        if found != disk.number:
            what = found or "something that is no block device"
            raise FailedPrecondition(
                f"volume {volume_id}: {target} is a mount of {what}, not of the volume's disk {disk}; unmount it"
            )

    async def _refuse_second_target(self, publication: Publication, disk: Disk) -> None:
        """Only SINGLE_NODE_SINGLE_WRITER allows one target: kubelets that do not know it send the old mode for all."""
        volume = publication.volume
        if volume.capability.mode is not AccessMode.SINGLE_NODE_SINGLE_WRITER:
            return
        staging = self._places.canonical(volume.staging_path)
        others = [
            entry
            for entry in await self._locating.mounts_of(disk)
            if entry.mount_point != staging and (entry.device != disk.number or entry.root == "/")
        ]
        if others:
            raise FailedPrecondition(
                f"volume {volume.volume_id} may be used by one pod only (SINGLE_NODE_SINGLE_WRITER) and is "
                f"published at {mountinfo.paths(others)}"
            )

    async def _remember_disk_at(self, volume_id: str, target: str) -> None:
        """Notes the serial of a disk that another driver version published, so that Unstage knows what to prove."""
        try:
            if await self._records.recall(volume_id) is not None:
                return
        except Internal as error:  # a damaged record is no reason to keep a pod from ending
            log.warning("record unreadable", volume_id=volume_id, error=str(error))
            return
        disk = await self._disk_at(target)
        if disk is not None and disk.serial:
            await self._records.remember(Record(volume_id=volume_id, serial=disk.serial))

    async def _disk_at(self, target: str) -> Disk | None:
        """The disk whose file system is mounted at the target, or whose node is bound there."""
        mounted = (await self._mounts.table()).top(target)
        if mounted is None:
            return None
        present = await self._disks.all()
        disk = disk_rules.numbered(present, mounted.device)
        if disk is not None:
            return disk
        node = await self._places.device_at(target)
        return disk_rules.numbered(present, node) if node is not None else None


def _require_writable(publication: Publication, disk: Disk) -> None:
    if disk.read_only and not publication.must_be_read_only:
        raise FailedPrecondition(
            f"volume {publication.volume.volume_id}: disk {disk} is write-protected, but read-write is asked for. "
            "Publish it read-only, or look at the disk's entry in the VM"
        )


def _require_same(publication: Publication, mounted: MountEntry, disk: Disk) -> None:
    """Passes a target that is mounted already as it is wanted.

    A target that the predecessor mounted has none of the class's options, because it ignored them. Its pod serves on.
    """
    volume = publication.volume
    at = f"volume {volume.volume_id}: {mounted.mount_point}"
    if mounted.device != disk.number:
        raise FailedPrecondition(
            f"{at} is a mount of {mounted.source} ({mounted.device}), not of the volume's disk {disk}; unmount it"
        )
    # A file system that the kernel made read-only after an error is no other publication: the mount's own flag tells.
    missing = publication.flags - mounted.options
    if "ro" in mounted.options and not publication.must_be_read_only:
        raise AlreadyExists(f"{at} is published read-only, but read-write is asked for now")
    if "ro" in missing:
        raise AlreadyExists(f"{at} is published read-write, but read-only is asked for now")
    if missing and not of_predecessor(volume.context.serial):
        raise AlreadyExists(f"{at} is published without {', '.join(sorted(missing))}, which is asked for now")
    if missing:
        log.warning("mount options missing", volume_id=volume.volume_id, path=mounted.mount_point, options=missing)
