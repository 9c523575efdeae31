"""The disks that are plugged into one running machine: slots, target names, and the order of QMP commands.

A plug is a block node over the raw file and then a device on it; an unplug is the reverse, with the guest's release
in between. A scsi disk goes at once; a virtio disk goes when the guest answers, and a guest that is still booting loses
the request, so it is asked again. A disk can be made slow, or fail: by a node in between that answers with errors.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from e2e.lab.machines import Disk, MachineError
from e2e.lab.machines.commandline import BOOT_VIRTIO_DISKS
from e2e.lab.machines.qmp import Monitor, Refused, released

SERIAL_LIMIT = 36  # QEMU 9.1 and later refuse longer ones
UNPLUG_SECONDS = 30
ASK_AGAIN_SECONDS = 3
EIO = 5

Operation = Literal["read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """A disk in the machine, and what it occupies there."""

    disk: Disk
    device: str
    node: str
    target: str
    port: str | None = None
    lun: int | None = None

    @property
    def backend(self) -> str:
        """What QEMU's monitor calls the device where its limits are concerned."""
        return f"/machine/peripheral/{self.device}/virtio-backend" if self.port else self.device

    @property
    def file(self) -> str:
        """The block node of the file itself."""
        return f"{self.node}-file"

    @property
    def faults(self) -> str:
        """The block node that answers with errors, while there is one."""
        return f"{self.node}-faults"


class Plugs:
    """The plugged disks of one run of a machine; callers take turns."""

    def __init__(self, vm: str, monitor: Monitor, *, ports: Sequence[str]) -> None:
        self._vm = vm
        self._monitor = monitor
        self._ports = ports
        self._plugged: dict[str, Plugged] = {}
        self._failing: set[str] = set()
        self._numbers = count()

    async def plug(self, disk: Disk) -> str:
        """Plugs the disk and returns its target; plugged already is not an error.

        Raises:
            MachineError: no port is free, the serial is too long, or QEMU refused.
        """
        if disk.name in self._plugged:
            return self._plugged[disk.name].target
        plugged = self._place(disk)
        file = {"driver": "file", "node-name": plugged.file, "filename": str(plugged.disk.path)}
        await self._monitor.execute("blockdev-add", _node(plugged, file=file))
        try:
            await self._monitor.execute("device_add", _device(plugged))
        except BaseException:  # a node that is left keeps the file locked against the next attempt
            await self._drop_node(plugged.node)
            raise
        self._plugged[disk.name] = plugged
        return plugged.target

    async def unplug(self, name: str) -> None:
        """Takes the disk away and returns when QEMU has released it; an unknown disk is not an error.

        A guest gives a virtio disk up first; of a SCSI disk it hears afterwards, and its name may stay for a moment.

        Raises:
            MachineError: the guest has not released it after 30 s; it stays plugged.
        """
        if name not in self._plugged:
            return
        plugged = self._plugged[name]
        await self._release(plugged)
        await self._work_again(plugged)
        await self._drop_node(plugged.node)
        del self._plugged[name]

    async def resize(self, name: str, size: int) -> None:
        """Tells the guest the disk's new size in bytes.

        Raises:
            MachineError: no such disk is plugged, or QEMU refused.
        """
        plugged = self._known(name, so="it cannot be resized")
        await self._monitor.execute("block_resize", {"node-name": plugged.node, "size": size})

    async def throttle(self, name: str, bytes_per_second: int) -> None:
        """Lets no more bytes through, reads and writes together; 0 takes the limit away.

        Raises:
            MachineError: no such disk is plugged, or QEMU refused.
        """
        plugged = self._known(name, so="it cannot be slow")
        others = dict.fromkeys(("bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
        limit = {"id": plugged.backend, "bps": bytes_per_second, **others}
        await self._monitor.execute("block_set_io_throttle", limit)

    async def fail(self, name: str, operations: Sequence[Operation]) -> None:
        """Answers these operations with an I/O error and carries out the others, of which flush is always one.

        Raises:
            MachineError: no such disk is plugged, or QEMU refused.
        """
        plugged = self._known(name, so="it cannot fail")
        await self._work_again(plugged)
        if not operations:
            return
        rules = [{"event": "none", "iotype": operation, "errno": EIO} for operation in operations]
        faults = {"driver": "blkdebug", "node-name": plugged.faults, "image": plugged.file, "inject-error": rules}
        await self._monitor.execute("blockdev-add", faults)
        self._failing.add(name)
        await self._monitor.execute("blockdev-reopen", {"options": [_node(plugged, file=plugged.faults)]})

    @property
    def names(self) -> AbstractSet[str]:
        """The names of the plugged disks."""
        return self._plugged.keys()

    def _place(self, disk: Disk) -> Plugged:
        if len(disk.serial) > SERIAL_LIMIT:
            raise MachineError(
                f"{self._vm}: QEMU refused disk {disk.name}: "
                f"The serial number can't be longer than {SERIAL_LIMIT} characters"
            )
        return Plugged(
            disk=disk,
            device=f"ua-{disk.name}",
            # QEMU limits the names of block nodes to 31 characters, a volume's name is longer.
            node=f"plugged-{next(self._numbers)}",
            target=self._free_target(disk),
            port=self._free_port(disk) if disk.bus == "virtio" else None,
            lun=self._free_lun() if disk.bus == "scsi" else None,
        )

    def _free_target(self, disk: Disk) -> str:
        prefix, taken = ("sd", 0) if disk.bus == "scsi" else ("vd", BOOT_VIRTIO_DISKS)
        used = {plugged.target for plugged in self._plugged.values()}
        names = (f"{prefix}{letters(index)}" for index in count(taken))
        return next(name for name in names if name not in used)

    def _free_port(self, disk: Disk) -> str:
        used = {plugged.port for plugged in self._plugged.values()}
        free = [port for port in self._ports if port not in used]
        if not free:
            raise MachineError(
                f"{self._vm}: cannot plug disk {disk.name}: No more available PCI slots "
                f"({len(self._ports)} ports, all taken by virtio disks)"
            )
        return free[0]

    def _free_lun(self) -> int:
        used = {plugged.lun for plugged in self._plugged.values()}
        return next(lun for lun in count() if lun not in used)

    async def _release(self, plugged: Plugged) -> None:
        async with self._monitor.deletion(plugged.device) as deleted:
            for _ in range(UNPLUG_SECONDS // ASK_AGAIN_SECONDS):
                try:
                    await self._monitor.execute("device_del", {"id": plugged.device})
                except Refused as error:
                    if "not found" in error.text:
                        return  # released since an earlier call gave up waiting
                    if "in the process of unplug" not in error.text:
                        raise
                if await released(deleted, seconds=ASK_AGAIN_SECONDS):
                    return
        raise MachineError(
            f"{self._vm}: the guest has not released disk {plugged.disk.name} ({plugged.target}) "
            f"after {UNPLUG_SECONDS} s; is it in use there?"
        )

    async def _work_again(self, plugged: Plugged) -> None:
        if plugged.disk.name not in self._failing:
            return
        await self._monitor.execute("blockdev-reopen", {"options": [_node(plugged, file=plugged.file)]})
        await self._drop_node(plugged.faults)
        self._failing.remove(plugged.disk.name)

    def _known(self, name: str, *, so: str) -> Plugged:
        if name not in self._plugged:
            raise MachineError(f"{self._vm}: disk {name} is not plugged, so {so}")
        return self._plugged[name]

    async def _drop_node(self, node: str) -> None:
        await self._monitor.execute("blockdev-del", {"node-name": node})


def letters(index: int) -> str:
    """``a`` to ``z``, then ``aa``, ``ab`` and so on, as the kernel and libvirt count disks."""
    name = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = string.ascii_lowercase[digit] + name
    return name


def _node(plugged: Plugged, *, file: str | dict[str, str]) -> dict[str, Any]:
    # Write-back: what the guest wrote is in the file for every reader on the host, and a guest's flush is an fdatasync.
    return {
        "driver": "raw",
        "node-name": plugged.node,
        "read-only": plugged.disk.read_only,
        "discard": "unmap",
        "file": file,
    }


def _device(plugged: Plugged) -> dict[str, Any]:
    common = {"id": plugged.device, "drive": plugged.node, "serial": plugged.disk.serial}
    if plugged.port is not None:
        return {"driver": "virtio-blk-pci", "bus": plugged.port, **common}
    return {
        "driver": "scsi-hd",
        "bus": "scsi0.0",
        "channel": 0,
        "scsi-id": 0,
        "lun": plugged.lun,
        "device_id": plugged.disk.serial,
        **common,
    }
