"""Finds the disk of a volume in this node, and tells where that disk is in use.

A disk shows up a moment after the controller's publish, so a missing one is waited for; the kernel and udev are asked
once to look again. What is never done is to take the next best disk.
"""

from __future__ import annotations

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.ports.host import Disks, Mounts, Places
from kubevirt_csi.waiting import Pauses, until

DISK_WAIT_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
RESCAN_AFTER_SECONDS = 2.0


class Locating:
    """Looks at the node's disks and mounts; changes nothing."""

    def __init__(self, *, disks: Disks, mounts: Mounts, places: Places) -> None:
        self._disks = disks
        self._mounts = mounts
        self._places = places

    async def disk(self, *, volume_id: str, serial: str, wait_seconds: float = DISK_WAIT_SECONDS) -> Disk:
        """The one disk with this serial, waited for.

        Raises:
            FailedPrecondition: several disks show the serial.
            Unavailable: there is none, even after waiting and a rescan.
        """
        seen: tuple[Disk, ...] = ()

        async def look() -> Disk | None:
            nonlocal seen
            seen = await self._disks.all()
            context.progress(f"a disk with serial {serial} to appear in this node")
            return disk_rules.matching(seen, serial)

        early, late = min(wait_seconds, RESCAN_AFTER_SECONDS), max(0.0, wait_seconds - RESCAN_AFTER_SECONDS)
        pauses = Pauses(first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        found = await until(look, changed=[], seconds=early, look_again=pauses)
        if found is None and late:
            await self._disks.rescan()
            found = await until(look, changed=[], seconds=late, look_again=pauses)
        if found is None:
            raise Unavailable(
                f"volume {volume_id} is attached, but no disk of this node showed its serial {serial} within "
                f"{wait_seconds:g} s{' and a rescan' if late else ''}. Disks seen: {_on_a_bus(seen)}. Look at the VM "
                "instance's volumeStatus and its disk's serial in the infra cluster, and at this node's kernel log"
            )
        return found

    async def mounts_of(self, disk: Disk) -> tuple[MountEntry, ...]:
        """All mounts of the disk that this process can see: its file system, and binds of its device node."""
        table = await self._mounts.table()
        # A bound device node is a mount of the folder it lies in; the name narrows it down, the number decides.
        candidates = [entry for entry in table.entries if entry.name == disk.name]
        nodes = [entry for entry in candidates if await self._places.device_at(entry.mount_point) == disk.number]
        return (*table.of(disk.number), *nodes)


def _on_a_bus(seen: tuple[Disk, ...]) -> str:
    return disk_rules.describe([disk for disk in seen if disk.bus is not None])
