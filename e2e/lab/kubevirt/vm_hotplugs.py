"""How hot-plugs travel from a VM to its VMI: off the queue in the VM's status, or by making the VMI like the VM's spec.

Sources: KubeVirt pkg/virt-controller/watch/vm (handleVolumeRequests) and pkg/storage/hotplug. The surprising facts: the
hot-plugs of a VM's spec travel in one single patch, so one entry that the VMI's webhook refuses holds up all of them;
a queue ends at the first request that fails, and then the VM's spec gets none of it though the VMI may have some; and
whatever is still queued is worked off in every mode and holds up the other way.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.disks import by_name, disks_of, hotplugs_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.faults import faults_of
from e2e.lab.kubevirt.gates import KUBEVIRT_KEY, gates_of
from e2e.lab.kubevirt.hotplug_requests import carry_out, check_enabled
from e2e.lab.kubevirt.reconciling import Stopwatch
from e2e.lab.kubevirt.resources import KUBEVIRT, VM, VMI, Object, deleting, dig, key_of, uid_of
from e2e.lab.kubevirt.volume_requests import applied, is_add, name_in, queue_of

CONFLICT = 409
INVALID = 422
HOTPLUG_ERROR = "HotPlugVolumeError"
UPDATE_ERROR = "FailedUpdateError"
QUEUE_TEXT = "Error encountered while handling volume hotplug requests: "
UPDATE_TEXT = "Error encountered when trying to update vm according to add volume and/or memory dump requests: "
SYNC_TEXT = "Error encountered while handling declarative hotplug volumes: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the VM's hot-plugs do not come forward, as its condition tells it."""

    reason: str
    message: str


class Hotplugs:
    """Carries hot-plugs on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._steps = Stopwatch()

    def due(self, vm: Object, instance: Object | None) -> float:
        """Seconds until virt-controller gets to the VM's changed hot-plugs; 0 when it does now, or nothing is changed.

        It is late where that is ordered, as one with many VMs to look after is: then it finds many changes at once.
        """
        slow = faults_of(vm, self._cluster.get(KUBEVIRT, KUBEVIRT_KEY)).slow_sync
        if slow and self._changed(vm, instance):
            return self._steps.left(slow, uid_of(vm))
        self._steps.forget(uid_of(vm))
        return 0.0

    def _changed(self, vm: Object, instance: Object | None) -> bool:
        if queue_of(vm):
            return True
        return instance is not None and bool(aligning_patch(vm["spec"]["template"]["spec"], instance))

    async def carry_on(self, vm: Object, instance: Object | None) -> tuple[Object, Failure | None]:
        """Does what the mode has it do; returns the VM as it is then, and what has failed."""
        if queue_of(vm):
            return await self._work_off(vm, instance)
        if gates_of(self._cluster).mode == "declarative":
            return vm, await self._align(vm, instance)
        return vm, None

    async def _work_off(self, vm: Object, instance: Object | None) -> tuple[Object, Failure | None]:
        """Puts the queued requests into the VMI's spec one by one and into the VM's all at once."""
        template = dig(vm, "spec", "template", "spec")
        changed = template
        try:
            for request in queue_of(vm):
                changed = applied(changed, request)
                await self._pass_on(request, instance)
        except ApiError as error:
            return vm, Failure(reason=HOTPLUG_ERROR, message=QUEUE_TEXT + error.message)
        if changed == template:
            return vm, None
        spec = vm["spec"] | {"template": vm["spec"]["template"] | {"spec": changed}}
        try:
            return await self._cluster.replace(VM, vm | {"spec": spec}), None
        except ApiError as error:
            if error.status == CONFLICT:
                raise
            return vm, Failure(reason=UPDATE_ERROR, message=UPDATE_TEXT + error.message)

    async def _pass_on(self, request: Object, instance: Object | None) -> None:
        """Asks virt-api to change the VMI, unless it is so already."""
        if instance is None or deleting(instance):
            return
        if is_add(request) == (name_in(request) in by_name(volumes_of(instance["spec"]))):
            return
        check_enabled(gates_of(self._cluster), "addvolume" if is_add(request) else "removevolume")
        await carry_out(self._cluster, VMI, key_of(instance), request)

    async def _align(self, vm: Object, instance: Object | None) -> Failure | None:
        """Patches the VMI's hot-plugs to be the VM's."""
        if instance is None or deleting(instance) or dig(instance, "status", "phase") != "Running":
            return None
        if vm["spec"].get("updateVolumesStrategy") == "Migration":
            return None
        patch = aligning_patch(vm["spec"]["template"]["spec"], instance)
        if not patch:
            return None
        try:
            await self._cluster.patch(VMI, key_of(instance), patch)
        except ApiError as error:
            if error.status != INVALID or not error.message.startswith("admission webhook"):
                raise
            return Failure(reason=HOTPLUG_ERROR, message=SYNC_TEXT + error.message)
        return None


def aligning_patch(wanted: Object, instance: Object) -> list[Object]:
    """The JSON patch that makes the VMI's hot-plugs those of the VM's template; empty when there is nothing to do.

    A changed or re-added volume waits until the VMI's status has forgotten the old one.
    """
    spec = instance["spec"]
    wanted_volumes, wanted_disks = by_name(hotplugs_of(wanted)), by_name(disks_of(wanted))
    present_disks = by_name(disks_of(spec))
    remembered = {status["name"] for status in dig(instance, "status", "volumeStatus", default=[])}

    def kept(volume: Object) -> bool:
        name = volume["name"]
        same = wanted_volumes.get(name) == volume and wanted_disks.get(name) == present_disks.get(name)
        return same or not is_hotplug(volume)

    before = volumes_of(spec)
    volumes = [volume for volume in before if kept(volume)]
    removed = {volume["name"] for volume in before} - {volume["name"] for volume in volumes}
    known = {volume["name"] for volume in before} | remembered
    added = [volume for name, volume in wanted_volumes.items() if name not in known]
    if not removed and not added:
        return []
    disks = [disk for disk in disks_of(spec) if disk["name"] not in removed]
    disks += [wanted_disks[volume["name"]] for volume in added if volume["name"] in wanted_disks]
    changes = (
        ("/spec/volumes", spec.get("volumes"), volumes + added),
        ("/spec/domain/devices/disks", dig(spec, "domain", "devices", "disks"), disks),
    )
    return [
        operation
        for path, old, new in changes
        for operation in (
            {"op": "test", "path": path, "value": old},
            {"op": "add" if old is None else "replace", "path": path, "value": new},
        )
    ]
