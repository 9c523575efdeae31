"""virt-handler's part of a VMI's life: the machine is started and stopped, volumes are mounted and unmounted.

Source: KubeVirt pkg/virt-handler/vm.go. Detaches go before attaches. The surprising facts: a VM with hot-plugs in its
spec is not started before all of them are mounted, so one that never comes keeps it from booting (since v1.6); and
while a machine is being migrated, nothing is done for it.

Machines are called by the VM's name alone, so names must be unique in the management cluster.
"""

from __future__ import annotations

import asyncio
import copy
import string
from collections.abc import Iterator

from e2e.lab.kubevirt.backing import Backing
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import drop_condition, has_condition, set_condition
from e2e.lab.kubevirt.disks import bus_of, by_name, claim_name, disks_of, hotplugs_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.domain import PLUGGED, Domain, hotplug_entries
from e2e.lab.kubevirt.gates import gates_of
from e2e.lab.kubevirt.instances import FINAL_PHASES
from e2e.lab.kubevirt.migrations import in_progress, judge_migratable
from e2e.lab.kubevirt.reconciling import Stopwatch, soonest
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import VM, VMI, Key, Object, deleting, dig, key_of, uid_of
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.volume_status import phase_events
from e2e.lab.machines import MachineError, Machines

MOUNTABLE = ("Pending", "Bound", "AttachedToNode")
UNMOUNTABLE = ("Ready", "MountedToPod", "AttachedToNode")
FIRST_WAITING = (1, 6)  # the version since which the start waits for hot-plugs
SHUTDOWN = "lab.csi.kubevirt.io/guest-shutdown"


class Handler:
    """Reconciles VMIs as virt-handler does."""

    def __init__(
        self, cluster: Cluster, machines: Machines, backing: Backing, *, domain: Domain, durations: Durations
    ) -> None:
        self._cluster = cluster
        self._machines = machines
        self._backing = backing
        self._domain = domain
        self._durations = durations
        self._recorder = Recorder(cluster, "virt-handler")
        self._steps = Stopwatch()
        self._started: dict[str, str] = {}  # the VMI's uid for which this process has started the machine

    async def reconcile(self, key: Key) -> float | None:
        """Takes machine and disks one step further and reports it in the VMI."""
        instance = self._cluster.get(VMI, key)
        phase = dig(instance, "status", "phase")
        if instance is None or self._backing.faults(instance).virt_handler_down:
            return None
        if phase in FINAL_PHASES:
            await self._machines.stop(key[1])
            self._forget(instance)
            return None
        if phase not in ("Scheduled", "Running"):
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
            await self._recorder.record_all(VMI, new, phase_events(instance, new))
        return again

    async def _advance(self, instance: Object) -> float | None:
        """Changes ``instance`` as far as it comes; what was done before a MachineError stays in it."""
        if deleting(instance):
            return await self._end(instance, phase="Succeeded")
        if instance["status"]["phase"] == "Scheduled":
            return soonest(await self._mount(instance), await self._start(instance))
        if self._backing.faults(instance).guest_shutdown:
            return await self._shut_down(instance)
        if not self._machines.running(key_of(instance)[1]):
            return await self._end(instance, phase="Failed")
        return await self._keep_running(instance)

    async def _keep_running(self, instance: Object) -> float | None:
        if in_progress(instance):
            return self._durations.machine_checked
        judge_migratable(instance)
        await self._pause(instance)
        status = instance["status"]
        before = copy.deepcopy(status.get("volumeStatus"))
        self._domain.notice_lost(instance)
        again = soonest(await self._unplug(instance), await self._mount(instance))
        if status.get("volumeStatus") != before:
            return 0.0  # what has been reached is told before the next, perhaps long, step
        await self._domain.resize(instance)
        return soonest(again, await self._domain.plug(instance), self._durations.machine_checked)

    async def _pause(self, instance: Object) -> None:
        """Stops the guest or lets it go on, as is ordered. Its volumes come and go all the same."""
        wanted = self._backing.faults(instance).paused
        if wanted == has_condition(instance["status"], "Paused"):
            return
        await self._machines.set_paused(key_of(instance)[1], paused=wanted)
        if wanted:
            text = "VMI was paused by user"
            set_condition(instance["status"], "Paused", value=True, reason="PausedByUser", message=text)
        else:
            drop_condition(instance["status"], "Paused")

    async def _end(self, instance: Object, *, phase: str) -> float | None:
        """The machine is off from here on."""
        await self._machines.stop(key_of(instance)[1])
        self._forget(instance)
        instance["status"]["phase"] = phase
        set_condition(instance["status"], "Ready", value=False, reason="GuestNotRunning")
        return None

    async def _shut_down(self, instance: Object) -> float | None:
        """The guest powers itself off, as was ordered at the VM; the order is taken away before the VM can restart."""
        await self._cluster.patch(VM, key_of(instance), {"metadata": {"annotations": {SHUTDOWN: None}}})
        return await self._end(instance, phase="Succeeded")

    def _forget(self, instance: Object) -> None:
        self._steps.forget(uid_of(instance))
        self._domain.forget(instance)

    async def _start(self, instance: Object) -> float | None:
        entries = by_name(dig(instance, "status", "volumeStatus", default=[]))
        if gates_of(self._cluster).version >= FIRST_WAITING:
            for volume in hotplugs_of(instance["spec"]):
                if entries.get(volume["name"], {}).get("phase") not in PLUGGED:
                    return None
        left = self._steps.left(self._durations.machine_start, uid_of(instance), "start")
        if left:
            return left
        name = key_of(instance)[1]
        if self._started.get(name) != uid_of(instance):
            await self._machines.stop(name)  # what a VMI that ended without its handler has left running
        await self._machines.start(name)
        self._started[name] = uid_of(instance)
        instance["status"]["phase"] = "Running"
        set_condition(instance["status"], "Ready", value=True)
        for disk, target in _permanent_targets(instance["spec"]):
            if disk in entries:
                entries[disk]["target"] = target
        return None

    async def _unplug(self, instance: Object) -> float | None:
        """Takes disks away that have left the spec, and unmounts their volumes."""
        in_spec = by_name(volumes_of(instance["spec"]))
        pauses = []
        for entry in dig(instance, "status", "volumeStatus", default=[]):
            name = entry["name"]
            if name in in_spec or "hotplugVolume" not in entry or entry["phase"] not in UNMOUNTABLE:
                continue
            left = await self._domain.unplug(instance, entry)
            if left:
                pauses.append(left)
                continue
            self._steps.forget(uid_of(instance), name)
            self._domain.forget(instance, name)
            entry |= {
                "phase": "UnMountedFromPod",
                "reason": "VolumeUnMountedFromPod",
                "message": f"Volume {name} has been unmounted from virt-launcher pod",
            }
        await self._domain.unplug_strangers(instance)
        return soonest(*pauses)

    async def _mount(self, instance: Object) -> float | None:
        """Mounts the volumes whose attachment pod is ready."""
        pauses = []
        for volume, entry in hotplug_entries(instance):
            name, pod = entry["name"], dig(entry, "hotplugVolume", "attachPodUID")
            if entry["phase"] not in MOUNTABLE or not pod:
                continue
            left = self._steps.left(self._durations.volume_mounted, uid_of(instance), name, "mounted", pod)
            if left:
                pauses.append(left)
                continue
            image = self._domain.image(instance, volume)
            if image is None or not await asyncio.to_thread(image.exists):
                # Only CDI makes disk.img in a Filesystem claim.
                message = f"unable to find disk image of volume {name}: {claim_name(volume)} has no disk.img"
                await self._recorder.record(VMI, instance, reason="HotplugFailed", message=message, kind="Warning")
                pauses.append(self._durations.retry)
                continue
            entry |= {
                "phase": "MountedToPod",
                "reason": "VolumeMountedToPod",
                "message": f"Volume {name} has been mounted in virt-launcher pod",
            }
        return soonest(*pauses)


def _permanent_targets(spec: Object) -> Iterator[tuple[str, str]]:
    """The targets that libvirt gives the disks that are there at boot."""
    volumes = by_name(volumes_of(spec))
    letters = {"vd": iter(string.ascii_lowercase), "sd": iter(string.ascii_lowercase)}
    for disk in disks_of(spec):
        if disk["name"] in volumes and not is_hotplug(volumes[disk["name"]]):
            prefix = "vd" if bus_of(disk) == "virtio" else "sd"
            yield disk["name"], prefix + next(letters[prefix])
