"""The hypervisor as the KubeVirt stand-in sees it: machines that boot, stop, and take and give up disks.

The stand-in decides what the API says; a ``Machines`` decides what really happens to the guest. Nothing here knows
Kubernetes objects.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Bus = Literal["scsi", "virtio"]


class MachineError(Exception):
    """The hypervisor refused, or did not do in time, what it was asked; the text says which machine and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk to plug: ``name`` is the volume name and unique in its machine, ``path`` a raw image on the host."""

    name: str
    path: Path
    bus: Bus
    serial: str
    read_only: bool = False


class Machines(Protocol):
    """Named virtual machines; every method has a deadline of its own and raises MachineError."""

    async def start(self, vm: str) -> None:
        """Powers the machine on and returns when its firmware runs. A machine that runs already is not an error."""

    async def stop(self, vm: str) -> None:
        """Powers the machine off and reaps it. A machine that does not run is not an error."""

    def running(self, vm: str) -> bool:
        """Whether the machine is powered on now."""

    async def set_paused(self, vm: str, *, paused: bool) -> None:
        """Stops the guest's processors, or lets them go on; a machine without a guest has none."""

    async def plug(self, vm: str, disk: Disk) -> str:
        """Plugs the disk and returns its target as libvirt would name it (``sda``, ``vdb``).

        A disk of that name that is plugged already is not an error: its target is returned.
        """

    async def unplug(self, vm: str, name: str) -> None:
        """Takes the disk away and returns when the guest has given it up. An unknown disk is not an error."""

    async def resize(self, vm: str, name: str, size: int) -> None:
        """Tells the guest that the plugged disk has ``size`` bytes now, which its image has already.

        A size that the guest knows already is not an error; a disk that is not plugged is one.
        """

    def plugged(self, vm: str) -> AbstractSet[str]:
        """The names of the disks that are plugged now; none in a machine that does not run."""
