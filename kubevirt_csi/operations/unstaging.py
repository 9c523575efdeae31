"""NodeUnstageVolume: unmount the volume, and prove that its disk may be unplugged.

After our OK the disk is taken out of the VM. So an unmount that worked is not enough: nothing on this node may have the
disk open any more, in whatever mount namespace, and all that was written must be on it. What has left already, and
what was never here, has nothing to lose.
"""

from __future__ import annotations

import asyncio

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain import mountinfo
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.errors import FailedPrecondition, Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.operations.formatting import Formatting
from kubevirt_csi.operations.locating import Locating
from kubevirt_csi.operations.trimming import Trimming
from kubevirt_csi.operations.unmounting import unmount_all
from kubevirt_csi.ports.host import Disks, Mounts, Places, Records

RELEASE_SECONDS = 10.0
"""How long the kernel may take to let go of a disk after its last unmount."""
RELEASE_PAUSE_SECONDS = 0.1


class Unstaging:
    """Takes volumes away from this node's staging paths."""

    def __init__(
        self,
        *,
        disks: Disks,
        formatting: Formatting,
        mounts: Mounts,
        places: Places,
        records: Records,
        trimming: Trimming,
        release_seconds: float = RELEASE_SECONDS,
    ) -> None:
        self._disks = disks
        self._formatting = formatting
        self._mounts = mounts
        self._places = places
        self._records = records
        self._trimming = trimming
        self._release_seconds = release_seconds
        self._locating = Locating(disks=disks, mounts=mounts, places=places)

    async def unstage(self, *, volume_id: str, staging_path: str) -> None:
        """Unmounts the volume and proves that nothing uses its disk any more. One that is not staged is no error.

        Raises:
            FailedPrecondition: it is mounted elsewhere (nothing was unmounted then), or something else holds its disk.
            Unavailable: what the kernel still holds back for the disk cannot be written to it.
        """
        path = self._places.canonical(staging_path)
        disks = await self._disks_of(volume_id, path)
        for disk in disks:
            await self._require_mounted_nowhere_else(volume_id, disk, path=path)
        await self._trimming.stop(volume_id)
        await unmount_all(self._mounts, path)
        self._formatting.forget(volume_id)
        for disk in disks:
            await self._prove_released(volume_id, disk)

    async def _disks_of(self, volume_id: str, path: str) -> tuple[Disk, ...]:
        """The disks that may be the volume's: those at the staging path, and those with the recorded serial."""
        present = await self._disks.all()
        mounted = {entry.device for entry in (await self._mounts.table()).at(path)}
        record = await self._records.recall(volume_id)
        shown = disk_rules.showing(present, record.serial) if record is not None else ()
        found = tuple(disk for disk in present if disk.number in mounted or disk in shown)
        mute = disk_rules.mute(present)
        if record is not None and not found and mute:
            raise Unavailable(
                f"volume {volume_id} may still be in use: its disk, serial {record.serial}, may be one of those that "
                f"do not answer: {disk_rules.describe(mute)}. Look at this node's kernel log and the disk's storage"
            )
        return found

    async def _require_mounted_nowhere_else(self, volume_id: str, disk: Disk, *, path: str) -> None:
        elsewhere = [entry for entry in await self._locating.mounts_of(disk) if entry.mount_point != path]
        if elsewhere:
            raise FailedPrecondition(
                f"volume {volume_id} (disk {disk}) is still mounted at {mountinfo.paths(elsewhere)}; unpublish it "
                "there first"
            )

    async def _prove_released(self, volume_id: str, disk: Disk) -> None:
        deadline = asyncio.get_running_loop().time() + self._release_seconds
        async with self._disks.opened(disk) as device:
            while await device.in_use():
                if asyncio.get_running_loop().time() >= deadline:
                    raise FailedPrecondition(
                        f"volume {volume_id} is unmounted here, but its disk {disk} is still in use{_by_whom(disk)}"
                    )
                context.progress(f"the kernel to release disk {disk}")
                await asyncio.sleep(RELEASE_PAUSE_SECONDS)
            await device.flush()


def _by_whom(disk: Disk) -> str:
    return f" by {', '.join(disk.holders)}" if disk.holders else ", perhaps in another mount namespace"
