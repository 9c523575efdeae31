"""How many volumes this node can have: one number, since CSI knows no buses.

It is what is here and what can still come. A volume on bus scsi takes a unit of the one virtio-scsi controller, which
has plenty, so there the bound is what a VM was seen to bear. A volume on bus virtio takes a PCI Express port, of which
a VM has few, shared with whatever else was plugged. Disks that are no volumes of ours (root, cloud-init, what others
plug) take places too, and are told by their serials.
Source: CSI spec: NodeGetInfo; KubeVirt docs/pci-topology.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.serials import is_a_volume

MOST_DISKS = 256
"""Of a VM, root disk and cloud-init included: more has been tested by nobody who told of it."""
UNKNOWN = 0
"""CSI spec: the orchestrator then decides, which Kubernetes does by not limiting at all."""

DiskLimit = int | Literal["auto", "ports"]
"""The most disks of all kinds, or how to find that out: by the free ports, or by whichever bus has more room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where disks can be plugged into this node.

    ``scsi``: there is a virtio-scsi controller. ``free_ports``: hot-plug slots with nothing in them; None when the
    node has no such slots, or does not tell.
    """

    scsi: bool
    free_ports: int | None


def most_volumes(disks: Iterable[Disk], room: Room, *, limit: DiskLimit) -> int:
    """The number for NodeGetInfo's ``max_volumes_per_node``; UNKNOWN when nothing tells.

    It is never zero otherwise, although no volume may fit: zero would mean any number.
    """
    plugged = [disk for disk in disks if disk.bus is not None and not disk.paths]
    volumes = {disk.serial for disk in plugged if disk.bus is not None and is_a_volume(disk.serial, bus=disk.bus)}
    free = _free(len(plugged), room, limit)
    return UNKNOWN if free is None else max(1, len(volumes) + free)


def _free(plugged: int, room: Room, limit: DiskLimit) -> int | None:
    """How many more disks can come."""
    if isinstance(limit, int):
        return limit - plugged
    if room.scsi and limit == "auto":
        return MOST_DISKS - plugged
    return room.free_ports
