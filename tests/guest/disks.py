"""Disks of one test: files on this side, plugged into the guest's virtio and scsi buses by QEMU's monitor.

What the guest wrote is in the file once it flushed, so a test can look at a disk without the guest. A disk's name in
the guest is what the guest says it is: a name that is still held by a mount is not given to the next disk.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from e2e.lab.machines import Disk
from e2e.lab.machines.hotplug import Operation
from kubevirt_csi.domain.volumes import Bus
from tests.guest.node import GuestNode
from tests.guest.volumes import Volume

_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedDisk:
    """A disk in the guest: ``plug`` is QEMU's name for it, ``name`` the guest's (``sda``)."""

    plug: str
    image: Path
    bus: Bus
    name: str

    @property
    def device(self) -> str:
        """Its device node in the guest."""
        return f"/dev/{self.name}"

    def is_zero(self) -> bool:
        """Whether nothing was ever written to it, as the file on this side tells."""
        with self.image.open("rb") as file:
            return all(not any(chunk) for chunk in iter(lambda: file.read(2**20), b""))


@dataclass(slots=True, kw_only=True)
class Disks:
    """Plugs and unplugs; what is plugged at the end of the test is unplugged then."""

    node: GuestNode
    folder: Path
    _plugged: dict[str, PluggedDisk] = field(default_factory=dict)

    def image(self, size: int) -> Path:
        """A new file of zeroes."""
        path = self.folder / f"disk-{next(_numbers)}.raw"
        path.touch()
        os.truncate(path, size)
        return path

    async def plug(self, volume: Volume, *, image: Path | None = None, bus: Bus | None = None) -> PluggedDisk:
        """Plugs a disk with the volume's serial and size, and returns when the guest has it; udev still looks at it."""
        before = await self.names()
        disk = Disk(
            name=f"disk-{next(_numbers)}",
            path=image or self.image(volume.size),
            bus=(bus or volume.bus).value,
            serial=volume.serial,
        )
        await self.node.machines.plug(self.node.vm, disk)
        self._plugged[disk.name] = PluggedDisk(plug=disk.name, image=disk.path, bus=bus or volume.bus, name="?")
        name = await self._new_name(before)
        plugged = PluggedDisk(plug=disk.name, image=disk.path, bus=bus or volume.bus, name=name)
        self._plugged[disk.name] = plugged
        return plugged

    async def unplug(self, disk: PluggedDisk) -> None:
        """Takes the disk out of the machine, whoever uses it there, and returns when sysfs shows it no more."""
        await self.node.machines.unplug(self.node.vm, disk.plug)
        del self._plugged[disk.plug]
        await self.node.until(f"! [ -e /sys/block/{disk.name} ]")
        await self.node.settled()

    async def grow(self, disk: PluggedDisk, size: int) -> None:
        """The infra cluster's part of an expansion: a larger image, and the hypervisor's word to the guest."""
        os.truncate(disk.image, size)
        await self.node.machines.resize(self.node.vm, disk.plug, size)

    async def throttle(self, disk: PluggedDisk, bytes_per_second: int) -> None:
        """Makes the disk slow; 0 makes it fast again."""
        await self.node.machines.throttle(self.node.vm, disk.plug, bytes_per_second)

    async def fail(self, disk: PluggedDisk, *operations: Operation) -> None:
        """Has these operations end with an I/O error, and all others work."""
        await self.node.machines.fail(self.node.vm, disk.plug, operations)

    async def names(self) -> frozenset[str]:
        """The guest's scsi and virtio disks."""
        return frozenset((await self.node.sh("cd /sys/block; ls -d [sv]d*")).split())

    async def close(self) -> None:
        """Unplugs what is left."""
        for plug in tuple(self._plugged):
            await self.node.machines.unplug(self.node.vm, plug)
            del self._plugged[plug]
        await self.node.settled()

    async def _new_name(self, before: frozenset[str]) -> str:
        known = "|".join(sorted(before))
        look = f"for d in [sv]d*; do case $d in {known}) ;; *) [ -b /dev/$d ] && echo $d && exit 0 ;; esac; done"
        script = f"cd /sys/block; for _ in $(seq 200); do {look}; sleep 0.1; done; exit 1"
        return (await self.node.sh(script)).strip()


@asynccontextmanager
async def disks_of(node: GuestNode, folder: Path) -> AsyncIterator[Disks]:
    """The disks of one test, and a guest without a trace of them afterwards."""
    disks = Disks(node=node, folder=folder)
    try:
        yield disks
    finally:
        await node.clear()
        await disks.close()
