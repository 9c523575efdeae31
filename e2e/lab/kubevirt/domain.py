"""virt-launcher's part: the hot-plugged disks in the domain of a running machine, plugged, resized and taken away.

Source: KubeVirt pkg/virt-launcher/virtwrap/manager.go. The surprising facts: the first disk that the hypervisor refuses
ends the round, so later disks of that VM wait with it; and a disk that has left the domain by itself shows only in an
empty target, and is plugged again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from e2e.lab.kubevirt.backing import Backing
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.disks import bus_of, by_name, disks_of, hotplugs_of
from e2e.lab.kubevirt.gates import gates_of
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.reconciling import Stopwatch, soonest
from e2e.lab.kubevirt.resources import Object, dig, key_of, uid_of
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.sizes import grown_image_bytes
from e2e.lab.kubevirt.storage import image_of, make_image
from e2e.lab.machines import Disk, MachineError, Machines

PLUGGED = ("Ready", "MountedToPod")


class Domain:
    """Disks of the machines, which are called by the VM's name alone."""

    def __init__(
        self, cluster: Cluster, machines: Machines, backing: Backing, *, storage: Path, durations: Durations
    ) -> None:
        self._cluster = cluster
        self._machines = machines
        self._backing = backing
        self._storage = storage
        self._durations = durations
        self._steps = Stopwatch()
        self._sizes: dict[tuple[str, str], int] = {}  # what the guest was last told, by VMI and volume

    def forget(self, instance: Object, *volume: str) -> None:
        """Forgets how far the VMI's volumes, or one of them, have come."""
        self._steps.forget(uid_of(instance), *volume)
        for uid, name in list(self._sizes):
            if uid == uid_of(instance) and name in (volume or (name,)):
                del self._sizes[uid, name]

    def image(self, instance: Object, volume: Object) -> Path | None:
        """The raw image of the volume, which may not be there yet; None while its claim is not bound."""
        return image_of(self._cluster, self._storage, key_of(instance)[0], volume)

    def notice_lost(self, instance: Object) -> None:
        """Empties the target of every disk that is not in the domain any more, or whose loss was ordered."""
        plugged = self._machines.plugged(key_of(instance)[1])
        for volume, entry in hotplug_entries(instance):
            lost = self._backing.faults(instance, volume).lost_status == "target"
            if entry.get("phase") == "Ready" and (lost or entry["name"] not in plugged):
                entry["target"] = ""

    async def unplug_strangers(self, instance: Object) -> None:
        """Takes away the disks that are neither in the spec nor in the status."""
        known = {entry["name"] for entry in dig(instance, "status", "volumeStatus", default=[])}
        wanted = known | {volume["name"] for volume in hotplugs_of(instance["spec"])}
        for name in self._machines.plugged(key_of(instance)[1]) - wanted:
            await self._machines.unplug(key_of(instance)[1], name)

    async def unplug(self, instance: Object, entry: Object) -> float | None:
        """Takes the disk of an entry away and empties its target; returns what is left of the time that this takes."""
        claim = dig(entry, "persistentVolumeClaimInfo", "claimName", default=entry["name"])
        faults = self._backing.faults(instance, {"persistentVolumeClaim": {"claimName": claim}})
        if faults.stuck_detach == "Ready":
            return self._durations.retry
        left = self._left(instance, faults.slow_detach, entry["name"], "slow detach")
        if left:
            return left
        await self._machines.unplug(key_of(instance)[1], entry["name"])
        entry["target"] = ""
        return self._left(instance, self._durations.volume_unmounted, entry["name"], "unmounted") or None

    async def plug(self, instance: Object) -> float | None:
        """Plugs the mounted volumes in the order of the spec.

        Raises:
            MachineError: a disk was refused; those before it are plugged and told.
        """
        machine = key_of(instance)[1]
        disks = by_name(disks_of(instance["spec"]))
        pauses: list[float | None] = []
        for volume, entry in hotplug_entries(instance):
            name = entry["name"]
            faults = self._backing.faults(instance, volume)
            ordered_away = faults.lost_status == "target" and entry.get("phase") == "Ready"
            if entry.get("phase") not in PLUGGED or entry.get("target") or ordered_away:
                continue
            if faults.stuck_attach == "MountedToPod":
                raise MachineError(f"{machine}: the hypervisor was ordered to refuse disk {name}")
            pod = dig(entry, "hotplugVolume", "attachPodUID", default="")
            left = self._left(instance, faults.slow_attach, name, "slow attach", pod)
            if left:
                pauses.append(left)
                continue
            plugged = self._disk(instance, volume, disks[name])
            self._sizes.setdefault((uid_of(instance), name), await asyncio.to_thread(_size_of, plugged.path))
            target = await self._machines.plug(machine, plugged)
            left = self._left(instance, self._durations.volume_ready, name, "ready")
            if left:
                pauses.append(left)
                continue
            entry |= {
                "phase": "Ready",
                "target": target,
                "reason": "VolumeReady",
                "message": f"Successfully attach hotplugged volume {name} to VM",
            }
        return soonest(*pauses)

    async def resize(self, instance: Object) -> None:
        """Gives each plugged disk the size that its grown claim allows; nothing tells when the guest has seen it.

        Raises:
            MachineError: the hypervisor refused.
        """
        if not gates_of(self._cluster).expand_disks:
            return
        for volume, entry in hotplug_entries(instance):
            info = entry.get("persistentVolumeClaimInfo")
            path = self.image(instance, volume)
            if not entry.get("target") or not info or path is None:
                continue
            size = _grown_size(info)
            present = await asyncio.to_thread(_size_of, path)
            known = (uid_of(instance), entry["name"])
            if info["volumeMode"] == "Block":
                size = min(size, present)
            elif size > present:
                await asyncio.to_thread(make_image, path, size)
            if size > self._sizes.get(known, 0):
                await self._machines.resize(key_of(instance)[1], entry["name"], size)
                self._sizes[known] = size

    def _disk(self, instance: Object, volume: Object, disk: Object) -> Disk:
        path = self.image(instance, volume)
        if path is None:
            raise MachineError(f"{key_of(instance)[1]}: the claim of volume {volume['name']} is not bound")
        bus = bus_of(disk)
        return Disk(
            name=disk["name"],
            path=path,
            bus="virtio" if bus == "virtio" else "scsi",
            # libvirt gets the XML of a hot-plug in lower case, and no serial for a lun.
            serial="" if "lun" in disk else str(disk.get("serial", "")).lower(),
            read_only=bool(
                dig(disk, "disk", "readonly") or dig(volume, "persistentVolumeClaim", "readOnly", default=False)
            ),
        )

    def _left(self, instance: Object, seconds: float, *step: str) -> float:
        return self._steps.left(seconds, uid_of(instance), *step)


def hotplug_entries(instance: Object) -> Iterator[tuple[Object, Object]]:
    """The hot-plugs of the spec that have a status entry, each with it, in the spec's order."""
    entries = by_name(dig(instance, "status", "volumeStatus", default=[]))
    return ((each, entries[each["name"]]) for each in hotplugs_of(instance["spec"]) if each["name"] in entries)


def _grown_size(info: Object) -> int:
    """The bytes that a disk in a claim of this size has."""
    capacity, requested = (bytes_of(info[field].get("storage", "0")) for field in ("capacity", "requests"))
    return grown_image_bytes(capacity, requested, Decimal(info["filesystemOverhead"]))


def _size_of(path: Path) -> int:
    return path.stat().st_size
