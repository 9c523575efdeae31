"""VirtualMachines: virt-controller's loop that keeps a VMI running and carries hot-plugs from VM spec to VMI spec.

Modelled are the run strategies Always and Halted; with any other the VMI is left as it is. The surprising facts: the
hot-plugs of a VM travel in one single patch, so one entry that the VMI's webhook refuses holds up all of them; and a
changed or re-added volume waits until the VMI's status has forgotten the old one.
"""

from __future__ import annotations

import copy

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import drop_condition, set_condition
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.disks import by_name, disks_of, hotplugs_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.instances import FINAL_PHASES, INSTANCE_FINALIZER
from e2e.lab.kubevirt.resources import VM, VMI, Key, Object, controlled_by, deleting, dig, owner_reference

VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
INVALID = 422
SYNC_ERROR = "Error encountered while handling declarative hotplug volumes: "


class VirtualMachines:
    """Reconciles VMs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def reconcile(self, key: Key) -> float | None:
        """Makes the VMI what the VM asks for and reports it in the VM's status."""
        vm = self._cluster.get(VM, key)
        if vm is None:
            return None
        instance = self._cluster.get(VMI, key)
        if instance is not None and not controlled_by(instance, vm):
            return None
        if deleting(vm):
            await self._finish(vm, instance)
            return None
        if VM_FINALIZER not in vm["metadata"].get("finalizers", []):
            vm = copy.deepcopy(vm)
            vm["metadata"].setdefault("finalizers", []).append(VM_FINALIZER)
            vm = await self._cluster.replace(VM, vm)
        strategy = run_strategy(vm)
        instance = await self._start_or_stop(vm, instance, strategy)
        failure = await self._sync_hotplugs(vm, instance)
        await self._report(vm, instance, failure)
        return None

    async def _finish(self, vm: Object, instance: Object | None) -> None:
        """A VM keeps its finalizer until its VMI is gone."""
        if instance is not None:
            if not deleting(instance):
                await self._cluster.delete(VMI, instance)
            await self._report(vm, instance, None)
            return
        finalizers = vm["metadata"].get("finalizers", [])
        if VM_FINALIZER in finalizers:
            vm = copy.deepcopy(vm)
            vm["metadata"]["finalizers"] = [each for each in finalizers if each != VM_FINALIZER]
            await self._cluster.replace(VM, vm)

    async def _start_or_stop(self, vm: Object, instance: Object | None, strategy: str) -> Object | None:
        if instance is None:
            return await self._cluster.create(VMI, new_instance(vm)) if strategy == "Always" else None
        ended = dig(instance, "status", "phase") in FINAL_PHASES
        if (strategy == "Halted" or (strategy == "Always" and ended)) and not deleting(instance):
            await self._cluster.delete(VMI, instance)
        return instance

    async def _sync_hotplugs(self, vm: Object, instance: Object | None) -> str | None:
        """Patches the VMI's hot-plugs to be the VM's; returns why the VMI's webhook refused it."""
        if instance is None or deleting(instance) or dig(instance, "status", "phase") != "Running":
            return None
        if vm["spec"].get("updateVolumesStrategy") == "Migration":
            return None
        patch = hotplug_patch(vm["spec"]["template"]["spec"], instance)
        if not patch:
            return None
        try:
            await self._cluster.patch(VMI, (instance["metadata"]["namespace"], instance["metadata"]["name"]), patch)
        except ApiError as error:
            if error.status != INVALID or not error.message.startswith("admission webhook"):
                raise
            return SYNC_ERROR + error.message
        return None

    async def _report(self, vm: Object, instance: Object | None, failure: str | None) -> None:
        status = copy.deepcopy(vm.get("status", {}))
        ready = dig(instance, "status", "phase") == "Running" and instance is not None and not deleting(instance)
        status["observedGeneration"] = vm["metadata"]["generation"]
        status["created"] = instance is not None
        status["ready"] = ready
        status["runStrategy"] = run_strategy(vm)
        status["printableStatus"] = printable_status(vm, instance)
        set_condition(status, "Ready", value=ready, reason="" if ready else "GuestNotRunning")
        if failure is None:
            drop_condition(status, "Failure")
        else:
            set_condition(status, "Failure", value=True, reason="HotPlugVolumeError", message=failure)
        if status != vm.get("status"):
            await self._cluster.replace(VM, vm | {"status": status}, subresource="/status")


def run_strategy(vm: Object) -> str:
    """The VM's run strategy; the older ``running`` field is understood too."""
    spec = vm["spec"]
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def new_instance(vm: Object) -> Object:
    """The VMI of a VM: same name, labels of the template and not of the VM."""
    template = vm["spec"]["template"]
    metadata = template.get("metadata", {})
    return {
        "metadata": {
            "namespace": vm["metadata"]["namespace"],
            "name": vm["metadata"]["name"],
            "labels": metadata.get("labels", {}),
            "annotations": metadata.get("annotations", {}),
            "finalizers": [INSTANCE_FINALIZER],
            "ownerReferences": [owner_reference(VM, vm)],
        },
        "spec": copy.deepcopy(template["spec"]),
    }


def hotplug_patch(wanted: Object, instance: Object) -> list[Object]:
    """The JSON patch that makes the VMI's hot-plugs those of the VM's template; empty when there is nothing to do."""
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


def printable_status(vm: Object, instance: Object | None) -> str:
    """What ``kubectl get vm`` shows."""
    if deleting(vm):
        return "Terminating"
    if instance is None:
        return "Stopped"
    if deleting(instance):
        return "Stopping"
    phase = dig(instance, "status", "phase", default="Pending")
    if phase in FINAL_PHASES:
        return "Stopped"
    return "Running" if phase == "Running" else "Starting"
