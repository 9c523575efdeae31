"""Machines without guests whose disks are real: a plugged disk is a loop device in a tree of the machine's own.

``DIRECTORY/VM/dev`` has the device nodes, ``DIRECTORY/VM/sys/block`` what a guest's sysfs would show: the serial where
its bus has it (written), everything else of the loop device itself (linked). A node plug-in that is pointed at both
formats and mounts for real, in the lab's own kernel. The surprising fact: an unplug cannot break a mount. The loop
device under it stays until the mount has gone, invisible in the tree.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self

from e2e.lab.machines import Disk, MachineError, Machines
from e2e.lab.machines.hotplug import SERIAL_LIMIT, letters
from e2e.lab.machines.loopdevice import LoopDevice, attach

BOOT_VIRTIO_DISKS = 1  # the machine's own disk is vda
VIRTIO_PORTS = 6  # what KubeVirt leaves free at least in a guest with more than 2 GiB
VIRTIO_SERIAL_BYTES = 20  # virtio specification, VIRTIO_BLK_T_GET_ID
UNIT_SERIAL_NUMBER = 0x80
# What a loop device has no own answer for, or another one than a disk of a guest.
WRITTEN = ("serial", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """A disk in the machine."""

    disk: Disk
    target: str
    loop: LoopDevice


@dataclass(slots=True)
class Machine:
    """One machine that runs."""

    name: str
    folder: Path
    plugged: dict[str, Plugged] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def dev(self) -> Path:
        return self.folder / "dev"

    @property
    def block(self) -> Path:
        return self.folder / "sys" / "block"

    def free_target(self, disk: Disk, *, virtio_ports: int) -> str:
        """The next free name of the disk's bus, as the kernel would give it."""
        prefix, first = ("sd", 0) if disk.bus == "scsi" else ("vd", BOOT_VIRTIO_DISKS)
        used = {plugged.target for plugged in self.plugged.values()}
        if prefix == "vd" and sum(target.startswith("vd") for target in used) >= virtio_ports:
            raise MachineError(f"{self.name}: cannot plug disk {disk.name}: No more available PCI slots")
        names = (f"{prefix}{letters(index)}" for index in count(first))
        return next(name for name in names if name not in used)


class LoopMachines(Machines):
    """The machines of one lab; a machine runs until it is stopped or this process ends."""

    def __init__(self, directory: Path, *, virtio_ports: int = VIRTIO_PORTS) -> None:
        self._directory = directory
        self._virtio_ports = virtio_ports
        self._running: dict[str, Machine] = {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Takes the keys ``directory``, where machines have their trees, and perhaps ``virtio_ports``."""
        return cls(Path(config["directory"]), virtio_ports=config.get("virtio_ports", VIRTIO_PORTS))

    async def start(self, vm: str) -> None:
        if vm in self._running:
            return
        machine = Machine(vm, self._directory / vm)
        shutil.rmtree(machine.folder, ignore_errors=True)  # of a process that was killed
        for folder in (machine.dev, machine.block):
            folder.mkdir(parents=True)
        self._running[vm] = machine

    async def stop(self, vm: str) -> None:
        machine = self._running.pop(vm, None)
        if machine is None:
            return
        async with machine.lock:
            await _do(machine, lambda: _power_off(machine))

    def running(self, vm: str) -> bool:
        return vm in self._running

    async def set_paused(self, vm: str, *, paused: bool) -> None:
        """There is no guest to stop."""

    async def plug(self, vm: str, disk: Disk) -> str:
        machine = self._machine(vm)
        async with machine.lock:
            if disk.name not in machine.plugged:
                target = machine.free_target(disk, virtio_ports=self._virtio_ports)
                await _do(machine, lambda: _plug(machine, disk, target=target))
            return machine.plugged[disk.name].target

    async def unplug(self, vm: str, name: str) -> None:
        if vm not in self._running:
            return
        machine = self._machine(vm)
        async with machine.lock:
            if name in machine.plugged:
                await _do(machine, lambda: _unplug(machine, name))

    async def resize(self, vm: str, name: str, size: int) -> None:
        machine = self._machine(vm)
        async with machine.lock:
            if name not in machine.plugged:
                raise MachineError(f"{vm}: disk {name} is not plugged, so it cannot be resized")
            plugged = machine.plugged[name]
            if (found := plugged.disk.path.stat().st_size) < size:
                raise MachineError(f"{vm}: the image of disk {name} has {found} bytes, less than {size}")
            await _do(machine, plugged.loop.grow)

    def plugged(self, vm: str) -> AbstractSet[str]:
        return set(self._running[vm].plugged) if vm in self._running else set()

    async def close(self) -> None:
        """Powers every machine off."""
        for vm in list(self._running):
            await self.stop(vm)

    def _machine(self, vm: str) -> Machine:
        if vm not in self._running:
            raise MachineError(f"{vm} does not run")
        return self._running[vm]


async def _do(machine: Machine, work: Callable[[], None]) -> None:
    """In a thread: closing a loop device writes back what the kernel still holds for it."""
    try:
        await asyncio.to_thread(work)
    except OSError as error:
        raise MachineError(f"{machine.name}: {error}") from error


def _plug(machine: Machine, disk: Disk, *, target: str) -> None:
    if len(disk.serial) > SERIAL_LIMIT:
        raise MachineError(f"{machine.name}: the serial of disk {disk.name} is longer than {SERIAL_LIMIT} characters")
    loop = attach(disk.path, machine.dev / target, read_only=disk.read_only)
    try:
        _show(machine, loop, disk=disk, target=target)
    except BaseException:
        loop.close()
        raise
    machine.plugged[disk.name] = Plugged(disk=disk, target=target, loop=loop)


def _unplug(machine: Machine, name: str) -> None:
    plugged = machine.plugged.pop(name)
    hidden = machine.folder / f"gone-{plugged.target}"
    (machine.block / plugged.target).rename(hidden)
    shutil.rmtree(hidden)
    plugged.loop.close()


def _power_off(machine: Machine) -> None:
    for name in list(machine.plugged):
        _unplug(machine, name)
    shutil.rmtree(machine.folder)


def _show(machine: Machine, loop: LoopDevice, *, disk: Disk, target: str) -> None:
    """Shows the disk in the machine's sysfs, in one piece: nobody reads half of it."""
    folder = machine.folder / f"new-{target}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in loop.sysfs.iterdir():
        if file.name not in WRITTEN:
            (folder / file.name).symlink_to(file)
    serial = disk.serial.encode()
    if disk.bus == "virtio":
        (folder / "serial").write_bytes(serial[:VIRTIO_SERIAL_BYTES])
    else:
        (folder / "device").mkdir()
        (folder / "device" / "vpd_pg80").write_bytes(unit_serial_number_page(serial))
    folder.rename(machine.block / target)


def unit_serial_number_page(serial: bytes) -> bytes:
    """SCSI Primary Commands, Unit Serial Number page: device type, page code, length in two bytes, serial."""
    return bytes((0, UNIT_SERIAL_NUMBER)) + len(serial).to_bytes(2, "big") + serial
