"""The node's operations, put together on what one host offers.

The process, the tests on real devices and those on a fake host all have them from here, so what is tested is put
together as what runs. It knows the ports only; which adapters are behind them is its caller's choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kubevirt_csi.domain.limits import DiskLimit
from kubevirt_csi.operations.formatting import Formatting
from kubevirt_csi.operations.growing import SIZE_WAIT_SECONDS, Growing
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.limiting import VolumeLimit
from kubevirt_csi.operations.locating import DISK_WAIT_SECONDS
from kubevirt_csi.operations.publishing import Publishing
from kubevirt_csi.operations.staging import Staging
from kubevirt_csi.operations.trimming import Trimming
from kubevirt_csi.operations.unstaging import RELEASE_SECONDS, Unstaging
from kubevirt_csi.operations.usage import VolumeUsage
from kubevirt_csi.ports.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the node waits for what the kernel does in its own time; seconds."""

    disk: float = DISK_WAIT_SECONDS
    size: float = SIZE_WAIT_SECONDS
    release: float = RELEASE_SECONDS


DEFAULT_WAITS = Waits()


class NodeOperations:
    """What a node does with volumes.

    Args:
        host: the worker.
        health: what is known to be wrong with volumes.
        max_disks: what the operator has set.
        waits: how long to wait for the kernel.
        chance: a number from 0 to 1, see ``Trimming``.
    """

    def __init__(
        self,
        host: Host,
        *,
        health: VolumeHealth,
        max_disks: DiskLimit = "auto",
        waits: Waits = DEFAULT_WAITS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        disks, mounts, places, records = host.disks, host.mounts, host.places, host.records
        formatting = Formatting(filesystems=host.filesystems, records=records)
        self.health = health
        self.limit = VolumeLimit(disks=disks, hotplug=host.hotplug, limit=max_disks)
        self.growing = Growing(
            disks=disks,
            filesystems=host.filesystems,
            mounts=mounts,
            places=places,
            records=records,
            resizing=host.resizing,
            health=health,
            size_wait_seconds=waits.size,
        )
        self.trimming = Trimming(disks=disks, mounts=mounts, records=records, trimmer=host.trimmer, chance=chance)
        self.staging = Staging(
            disks=disks,
            formatting=formatting,
            growing=self.growing,
            mounts=mounts,
            places=places,
            records=records,
            disk_wait_seconds=waits.disk,
        )
        self.unstaging = Unstaging(
            disks=disks,
            formatting=formatting,
            mounts=mounts,
            places=places,
            records=records,
            trimming=self.trimming,
            release_seconds=waits.release,
        )
        self.publishing = Publishing(
            staging=self.staging, trimming=self.trimming, disks=disks, mounts=mounts, places=places, records=records
        )
        self.usage = VolumeUsage(mounts=mounts, places=places, usage=host.usage, health=health, records=records)
