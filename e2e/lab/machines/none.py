"""Pretended machines, for a lab without guests: what runs and what is plugged are files, so that a restart sees them.

``DIRECTORY/VM/`` exists while the machine runs, ``DIRECTORY/VM/DISK`` holds the disk's target and, once it has been
resized, its size in bytes. Nothing happens to data.
"""

from __future__ import annotations

import shutil
import string
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Self

from e2e.lab.machines import Disk, MachineError

FIRST_LETTER = 1  # the machine's own disk has the first one
VIRTIO_PORTS = 6  # what KubeVirt leaves free at least in a guest with more than 2 GiB


class NoMachines:
    """Machines that exist by name only."""

    def __init__(self, directory: Path, *, virtio_ports: int = VIRTIO_PORTS) -> None:
        self._directory = directory
        ends = {"sd": len(string.ascii_lowercase), "vd": FIRST_LETTER + virtio_ports}
        self._letters = {prefix: string.ascii_lowercase[FIRST_LETTER:end] for prefix, end in ends.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Takes the keys ``directory``, where machines are written down, and perhaps ``virtio_ports``."""
        return cls(Path(config["directory"]), virtio_ports=config.get("virtio_ports", VIRTIO_PORTS))

    async def start(self, vm: str) -> None:
        (self._directory / vm).mkdir(parents=True, exist_ok=True)

    async def stop(self, vm: str) -> None:
        shutil.rmtree(self._directory / vm, ignore_errors=True)

    def running(self, vm: str) -> bool:
        return (self._directory / vm).is_dir()

    async def set_paused(self, vm: str, *, paused: bool) -> None:
        """There is no guest to stop."""

    async def plug(self, vm: str, disk: Disk) -> str:
        """Gives the disk the next free target of its bus."""
        if not self.running(vm):
            raise MachineError(f"{vm} does not run, {disk.name} cannot be plugged")
        plugged = {file.name: file.read_text().split()[0] for file in (self._directory / vm).iterdir()}
        if disk.name in plugged:
            return plugged[disk.name]
        prefix = "vd" if disk.bus == "virtio" else "sd"
        for letter in self._letters[prefix]:
            if (target := prefix + letter) not in plugged.values():
                (self._directory / vm / disk.name).write_text(target)
                return target
        raise MachineError(f"{vm} has no free {disk.bus} target for {disk.name}")

    async def unplug(self, vm: str, name: str) -> None:
        (self._directory / vm / name).unlink(missing_ok=True)

    async def resize(self, vm: str, name: str, size: int) -> None:
        file = self._directory / vm / name
        if not file.exists():
            raise MachineError(f"{vm}: disk {name} is not plugged, so it cannot be resized")
        file.write_text(f"{file.read_text().split()[0]} {size}")

    def plugged(self, vm: str) -> AbstractSet[str]:
        return {file.name for file in (self._directory / vm).iterdir()} if self.running(vm) else set()
