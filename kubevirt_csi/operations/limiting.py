"""How many volumes the scheduler may put on this node, as NodeGetInfo tells it.

Kubelet asks when the plugin registers, and again from time to time where the CSIDriver object has a
``nodeAllocatableUpdatePeriodSeconds``, so the answer is made from what is plugged at that moment.
"""

from __future__ import annotations

import structlog

from kubevirt_csi.domain import limits
from kubevirt_csi.domain.limits import DiskLimit
from kubevirt_csi.ports.host import Disks, Hotplug

log = structlog.get_logger(__name__)


class VolumeLimit:
    """Looks at the node's disks and free places.

    Args:
        disks: all disks of the node, ours and others.
        hotplug: where more can be plugged.
        limit: what the operator has set.
    """

    def __init__(self, *, disks: Disks, hotplug: Hotplug, limit: DiskLimit) -> None:
        self._disks = disks
        self._hotplug = hotplug
        self._limit = limit

    async def volumes(self) -> int:
        """The most volumes of this driver that can be attached at a time, those that are included; 0 when unknown."""
        disks, room = await self._disks.all(), await self._hotplug.room()
        found = limits.most_volumes(disks, room, limit=self._limit)
        log.info("volume limit", volumes=found, limit=self._limit, scsi=room.scsi, free_ports=room.free_ports)
        return found
