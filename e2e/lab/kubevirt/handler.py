"""virt-handler's part of a VMI's life: the machine is started and stopped, disks are plugged and unplugged for real.

Source: KubeVirt pkg/virt-handler/vm.go and pkg/virt-launcher/virtwrap/manager.go. Detaches go before attaches, and the
first disk that the hypervisor refuses ends the round: later disks of that VM wait with it. The surprising fact: a VM
with hot-plugs in its spec is not started before all of them are mounted, so one that never comes keeps it from booting.

Machines are called by the VM's name alone, so names must be unique in the management cluster.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Iterator
from pathlib import Path

from e2e.lab.kubevirt.attachments import phase_events
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import set_condition
from e2e.lab.kubevirt.disks import bus_of, by_name, disks_of, hotplugs_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.reconciling import Stopwatch, soonest
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import VMI, Key, Object, deleting, dig, key_of, uid_of
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.storage import image_of
from e2e.lab.machines import Disk, MachineError, Machines

PLUGGED = ("Ready", "MountedToPod")
MOUNTABLE = ("Pending", "Bound", "AttachedToNode")
UNMOUNTABLE = ("Ready", "MountedToPod", "AttachedToNode")


class Handler:
    """Reconciles VMIs as virt-handler does."""

    def __init__(self, cluster: Cluster, machines: Machines, *, storage: Path, durations: Durations) -> None:
        self._cluster = cluster
        self._machines = machines
        self._storage = storage
        self._durations = durations
        self._recorder = Recorder(cluster, "virt-handler")
        self._steps = Stopwatch()

    async def reconcile(self, key: Key) -> float | None:
        """Takes machine and disks one step further and reports it in the VMI."""
        instance = self._cluster.get(VMI, key)
        phase = dig(instance, "status", "phase")
        if instance is None or phase not in ("Scheduled", "Running"):
            return None
        new = copy.deepcopy(instance)
        try:
            again = await self._advance(new)
        except MachineError as error:
            message = f"server error. command SyncVMI failed: {error}"
            await self._recorder.record(VMI, instance, reason="SyncFailed", message=message, kind="Warning")
            again = self._durations.retry
        if new != instance:
            await self._cluster.replace(VMI, new)
            for reason, text in phase_events(instance, new):
                await self._recorder.record(VMI, new, reason=reason, message=text)
        return again

    async def _advance(self, instance: Object) -> float | None:
        """Changes ``instance`` as far as it comes; what was done before a MachineError stays in it."""
        name = key_of(instance)[1]
        status = instance["status"]
        if deleting(instance):
            await self._machines.stop(name)
            self._steps.forget(uid_of(instance))
            status["phase"] = "Succeeded"
            set_condition(status, "Ready", value=False, reason="GuestNotRunning")
            return None
        if status["phase"] == "Scheduled":
            return soonest(self._mount(instance), await self._start(instance))
        if not self._machines.running(name):
            status["phase"] = "Failed"
            set_condition(status, "Ready", value=False, reason="GuestNotRunning")
            return None
        before = copy.deepcopy(status.get("volumeStatus"))
        again = soonest(await self._unplug(instance), self._mount(instance))
        if status.get("volumeStatus") != before:
            return 0.0  # what has been reached is told before the next, perhaps long, step
        return soonest(again, await self._plug(instance), self._durations.machine_checked)

    async def _start(self, instance: Object) -> float | None:
        entries = by_name(dig(instance, "status", "volumeStatus", default=[]))
        for volume in hotplugs_of(instance["spec"]):
            if entries.get(volume["name"], {}).get("phase") not in PLUGGED:
                return None
        left = self._left(instance, self._durations.machine_start, "start")
        if left:
            return left
        await self._machines.start(key_of(instance)[1])
        instance["status"]["phase"] = "Running"
        set_condition(instance["status"], "Ready", value=True)
        for name, target in _permanent_targets(instance["spec"]):
            if name in entries:
                entries[name]["target"] = target
        return None

    async def _unplug(self, instance: Object) -> float | None:
        """Takes disks away that have left the spec."""
        in_spec = by_name(volumes_of(instance["spec"]))
        pauses = []
        for entry in dig(instance, "status", "volumeStatus", default=[]):
            name = entry["name"]
            if name in in_spec or "hotplugVolume" not in entry or entry["phase"] not in UNMOUNTABLE:
                continue
            await self._machines.unplug(key_of(instance)[1], name)
            entry["target"] = ""
            left = self._left(instance, self._durations.volume_unmounted, name, "unmounted")
            if left:
                pauses.append(left)
                continue
            self._steps.forget(uid_of(instance), name)
            entry |= {
                "phase": "UnMountedFromPod",
                "reason": "VolumeUnMountedFromPod",
                "message": f"Volume {name} has been unmounted from virt-launcher pod",
            }
        return soonest(*pauses)

    def _mount(self, instance: Object) -> float | None:
        """Mounts the volumes whose attachment pod is ready."""
        pauses = []
        for entry in self._hotplug_entries(instance):
            pod = dig(entry, "hotplugVolume", "attachPodUID")
            if entry["phase"] not in MOUNTABLE or not pod:
                continue
            left = self._left(instance, self._durations.volume_mounted, entry["name"], "mounted", pod)
            if left:
                pauses.append(left)
                continue
            entry |= {
                "phase": "MountedToPod",
                "reason": "VolumeMountedToPod",
                "message": f"Volume {entry['name']} has been mounted in virt-launcher pod",
            }
        return soonest(*pauses)

    async def _plug(self, instance: Object) -> float | None:
        """Plugs the mounted volumes in the order of the spec."""
        machine = key_of(instance)[1]
        disks = by_name(disks_of(instance["spec"]))
        volumes = by_name(volumes_of(instance["spec"]))
        pauses = []
        for entry in self._hotplug_entries(instance):
            name = entry["name"]
            if entry["phase"] not in PLUGGED or entry.get("target"):
                continue
            target = await self._machines.plug(machine, self._disk(instance, volumes[name], disks[name]))
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

    def _disk(self, instance: Object, volume: Object, disk: Object) -> Disk:
        path = image_of(self._cluster, self._storage, key_of(instance)[0], volume)
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

    def _hotplug_entries(self, instance: Object) -> Iterator[Object]:
        """The status entries of the hot-plugs in the spec, in its order."""
        entries = by_name(dig(instance, "status", "volumeStatus", default=[]))
        return (entries[each["name"]] for each in hotplugs_of(instance["spec"]) if each["name"] in entries)

    def _left(self, instance: Object, seconds: float, *step: str) -> float:
        return self._steps.left(seconds, uid_of(instance), *step)


def _permanent_targets(spec: Object) -> Iterator[tuple[str, str]]:
    """The targets that libvirt gives the disks that are there at boot."""
    volumes = by_name(volumes_of(spec))
    letters = {"vd": iter(string.ascii_lowercase), "sd": iter(string.ascii_lowercase)}
    for disk in disks_of(spec):
        if disk["name"] in volumes and not is_hotplug(volumes[disk["name"]]):
            prefix = "vd" if bus_of(disk) == "virtio" else "sd"
            yield disk["name"], prefix + next(letters[prefix])
