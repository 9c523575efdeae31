"""VirtualMachines: virt-controller's loop that keeps a VMI running and reports on it.

Modelled are the run strategies Always and Halted; with any other the VMI is left as it is. How hot-plugs come from the
VM to its VMI is in ``vm_hotplugs``. The surprising fact: nothing of that is done for a VM that is being deleted, though
its hot-plug requests are still accepted.
"""

from __future__ import annotations

import copy

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import drop_condition, has_condition, set_condition
from e2e.lab.kubevirt.instances import FINAL_PHASES, INSTANCE_FINALIZER
from e2e.lab.kubevirt.migrations import in_progress
from e2e.lab.kubevirt.resources import VM, VMI, Key, Object, controlled_by, deleting, dig, owner_reference
from e2e.lab.kubevirt.vm_hotplugs import Failure, Hotplugs
from e2e.lab.kubevirt.volume_requests import queue_of, unfinished

VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
ORPHAN = "orphan"  # the finalizer of Kubernetes' garbage collector
RETRY_SECONDS = 1.0


class VirtualMachines:
    """Reconciles VMs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._hotplugs = Hotplugs(cluster)

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
        if pause := self._hotplugs.due(vm, instance):
            return pause
        if VM_FINALIZER not in vm["metadata"].get("finalizers", []):
            vm = copy.deepcopy(vm)
            vm["metadata"].setdefault("finalizers", []).append(VM_FINALIZER)
            vm = await self._cluster.replace(VM, vm)
        before = instance
        instance = await self._start_or_stop(vm, instance, run_strategy(vm))
        failure = None
        if before is not None or instance is None:  # a VMI that has just been made is left alone in this round
            vm, failure = await self._hotplugs.carry_on(vm, instance)
        await self._report(vm, instance, failure)
        return None if failure is None else RETRY_SECONDS

    async def _finish(self, vm: Object, instance: Object | None) -> None:
        """A VM keeps its finalizer until its VMI is gone, unless it is to leave it as an orphan."""
        if instance is not None and ORPHAN not in vm["metadata"]["finalizers"]:
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
            # Not by POST, which kube-apiserver keeps waiting for two seconds while the kind is new.
            return await self._cluster.apply(VMI, new_instance(vm)) if strategy == "Always" else None
        ended = dig(instance, "status", "phase") in FINAL_PHASES
        if (strategy == "Halted" or (strategy == "Always" and ended)) and not deleting(instance):
            await self._cluster.delete(VMI, instance)
        return instance

    async def _report(self, vm: Object, instance: Object | None, failure: Failure | None) -> None:
        status = copy.deepcopy(vm.get("status", {}))
        ready = dig(instance, "status", "phase") == "Running" and instance is not None and not deleting(instance)
        status["observedGeneration"] = vm["metadata"]["generation"]
        status["created"] = instance is not None
        status["ready"] = ready
        status["runStrategy"] = run_strategy(vm)
        status["printableStatus"] = printable_status(vm, instance)
        status["volumeRequests"] = unfinished(queue_of(vm), vm["spec"]["template"]["spec"])
        if not status["volumeRequests"]:
            del status["volumeRequests"]
        set_condition(status, "Ready", value=ready, reason="" if ready else "GuestNotRunning")
        if failure is None:
            drop_condition(status, "Failure")
        else:
            set_condition(status, "Failure", value=True, reason=failure.reason, message=failure.message)
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
    return _of_running(instance) if phase == "Running" else "Starting"


def _of_running(instance: Object) -> str:
    if in_progress(instance):
        return "Migrating"
    return "Paused" if has_condition(instance["status"], "Paused") else "Running"
