"""NodeExpandVolume, and at every stage the same for a file system that is smaller than its disk.

The controller cannot know when the guest sees a larger disk, so the size is waited for here; a success without it would
never be repeated. What is mounted at the path decides what is grown: a file system by its disk and a mount that can be
written, a raw device by the hypervisor alone. A volume that cannot be grown is used as it is, and its health says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain.capacity import MIB, CapacityRange
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.errors import DriverError, Internal, NotFound, OutOfRange, Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.ports.host import Disks, Filesystems, Mounts, Places, Records, Resizing
from kubevirt_csi.waiting import Pauses, until

log = structlog.get_logger(__name__)

SIZE_WAIT_SECONDS = 60.0
"""How long the guest may take to see a disk's new size; kubelet waits for two minutes, and asks again."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
UNUSED_BYTES = 16 * MIB
"""Less than this at a disk's end is no reason to grow a file system: mkfs leaves some of it, by its rules and ours."""
HEALTH_SOURCE = "growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """One NodeExpandVolume: where the volume is mounted or its device bound, and how large it shall be."""

    volume_id: str
    path: str
    capacity: CapacityRange


class Growing:
    """Grows what is mounted on this node."""

    def __init__(
        self,
        *,
        disks: Disks,
        filesystems: Filesystems,
        mounts: Mounts,
        places: Places,
        records: Records,
        resizing: Resizing,
        health: VolumeHealth,
        size_wait_seconds: float = SIZE_WAIT_SECONDS,
    ) -> None:
        self._disks = disks
        self._filesystems = filesystems
        self._mounts = mounts
        self._places = places
        self._records = records
        self._resizing = resizing
        self._health = health
        self._size_wait_seconds = size_wait_seconds

    async def expand(self, expansion: Expansion) -> int:
        """Waits until the disk has the size, grows what is on it, and returns the disk's bytes.

        A volume that is mounted read-only only is left as it is.

        Raises:
            NotFound: nothing is mounted at the path.
            OutOfRange: the disk is larger than the limit.
            Unavailable: the disk has not grown yet, or has left.
            Internal: the file system does not grow, or what is mounted there is another volume's.
        """
        mounted, number = await self._mounted_at(expansion.path)
        disk = await self._disk_of(expansion, number)
        is_raw = number != mounted.device
        target = None if is_raw else await self._writable(disk)
        if target is None and not is_raw:
            log.info("not grown: read-only", volume_id=expansion.volume_id, path=expansion.path)
            return disk.size_bytes
        disk = await self._of_size(expansion, disk)
        if not expansion.capacity.admits(disk.size_bytes):
            raise OutOfRange(
                f"volume {expansion.volume_id}: its disk {disk} is larger than limit_bytes {expansion.capacity.limit}"
            )
        if target is not None:
            try:
                await self._grow(expansion.volume_id, disk, target)
            except DriverError as error:
                self._note(expansion.volume_id, error)
                raise
            self._note(expansion.volume_id, None)
        return disk.size_bytes

    async def fill(self, volume_id: str, disk: Disk) -> None:
        """Grows the volume's mounted file system if its disk has more than it uses.

        A failure is told by the volume's health only: the volume can be used all the same.
        """
        try:
            target = None if disk.read_only else await self._writable(disk)
            if target is None:
                return
            present = await self._filesystems.superblock(disk, target.fs_type)
            if disk.size_bytes - present.size_bytes >= UNUSED_BYTES:
                await self._grow(volume_id, disk, target)
        except DriverError as error:
            self._note(volume_id, error)
        else:
            self._note(volume_id, None)

    async def _mounted_at(self, path: str) -> tuple[MountEntry, disk_rules.DeviceNumber]:
        """What is mounted at the path, and its disk's number: of a raw volume, that of the node that is bound there."""
        if not path.startswith("/"):
            raise NotFound(f"{path!r} is no absolute path, so no volume is there")
        place = self._places.canonical(path)
        mounted = (await self._mounts.table()).top(place)
        if mounted is None:
            raise NotFound(f"no volume is mounted at {path}")
        return mounted, await self._places.device_at(place) or mounted.device

    async def _disk_of(self, expansion: Expansion, number: disk_rules.DeviceNumber) -> Disk:
        """The disk with this number, unless the node knows that the volume has another one."""
        present = await self._disks.all()
        disk = disk_rules.numbered(present, number)
        if disk is None:
            raise Unavailable(
                f"volume {expansion.volume_id}: the disk ({number}) of {expansion.path} has left this node"
            )
        record = await self._records.recall(expansion.volume_id)
        known = disk_rules.showing(present, record.serial) if record is not None else ()
        if known and disk not in known:
            # Not FailedPrecondition: by that kubelet understands that the volume must not be in use.
            raise Internal(
                f"volume {expansion.volume_id} is on disk {disk_rules.describe(known)}, but {disk} is at "
                f"{expansion.path}; nothing was grown"
            )
        return disk

    async def _writable(self, disk: Disk) -> MountEntry | None:
        """A mount through which the disk's file system can be grown; None when all of them are read-only."""
        table = await self._mounts.table()
        return next((entry for entry in table.of(disk.number) if not entry.read_only), None)

    async def _of_size(self, expansion: Expansion, disk: Disk) -> Disk:
        """The disk when it has the required size, as the kernel then shows it."""
        required = expansion.capacity.required
        now = disk

        async def look() -> Disk | None:
            nonlocal now
            await self._resizing.reread_size(disk)
            present = disk_rules.numbered(await self._disks.all(), disk.number)
            if present is None or present.serial != disk.serial:
                raise Unavailable(f"volume {expansion.volume_id}: disk {disk} has left this node")
            now = present
            context.progress(f"disk {now} to have {required} bytes")
            return now if now.size_bytes >= required else None

        pauses = Pauses(first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        grown = await until(look, changed=[], seconds=self._size_wait_seconds, look_again=pauses)
        if grown is None:
            raise Unavailable(
                f"volume {expansion.volume_id} is to have {required} bytes, but its disk {now} still had "
                f"{now.size_bytes} after {self._size_wait_seconds:g} s. {_what_to_do(now, required)}"
            )
        return grown

    async def _grow(self, volume_id: str, disk: Disk, target: MountEntry) -> None:
        log.info("growing", volume_id=volume_id, disk=str(disk), type=target.fs_type, mount_point=target.mount_point)
        context.progress(f"the {target.fs_type} on disk {disk} to grow")
        async with self._disks.opened(disk):  # until it is closed, its path is this disk's
            context.mark_written()
            await self._resizing.grow(disk, target.fs_type, mount_point=target.mount_point)

    def _note(self, volume_id: str, error: DriverError | None) -> None:
        ailments = [] if error is None else [Ailment(Severity.DEGRADED, Reason.GROWTH_FAILED, str(error))]
        self._health.note(volume_id, source=HEALTH_SOURCE, ailments=ailments)


def _what_to_do(disk: Disk, required: int) -> str:
    """About a disk that stays small."""
    if disk.paths and all(path.size_bytes >= required for path in disk.paths):
        return f"The disks below it have grown: run `multipathd resize map {disk.name}` on this node"
    return (
        "KubeVirt tells a running VM of it since 1.9, before that with the feature gate ExpandDisks only; otherwise "
        "restart the VM. Look at the claim's conditions in the infra cluster"
    )
