"""VirtualMachineInstances: virt-controller's part of their life, from Pending to Scheduled and again at their end.

virt-handler's part is in ``handler``; the two write the same object and meet only in its resourceVersion, as the real
ones do. A launcher pod stands for the machine in the API; the machine itself is started by the handler.
"""

from __future__ import annotations

import copy

from e2e.lab.kubevirt.attachments import Attachments, ClaimMissingError, phase_events
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.node import is_ready
from e2e.lab.kubevirt.reconciling import soonest
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import POD, VMI, Key, Object, deleting, dig, key_of, labels_of, owner_reference, uid_of

INSTANCE_FINALIZER = "kubevirt.io/foregroundDeleteVirtualMachine"
FINAL_PHASES = ("Succeeded", "Failed")
NODE_LABEL = "kubevirt.io/nodeName"
CREATED_BY = "kubevirt.io/created-by"
LAUNCHER_IMAGE = "kubevirt/virt-launcher:v1.9.0"
RETRY_SECONDS = 1.0


class Instances:
    """Reconciles VMIs as virt-controller does."""

    def __init__(self, cluster: Cluster, attachments: Attachments) -> None:
        self._cluster = cluster
        self._attachments = attachments
        self._recorder = Recorder(cluster, "virtualmachine-controller")

    async def reconcile(self, key: Key) -> float | None:
        """Takes the VMI one step further."""
        instance = self._cluster.get(VMI, key)
        if instance is None:
            return None
        launcher = self._launcher(instance)
        phase = dig(instance, "status", "phase")
        if phase in FINAL_PHASES or (deleting(instance) and phase not in ("Scheduled", "Running")):
            await self._clean_up(instance, launcher)
            return None
        if deleting(instance):
            return None  # the handler stops the machine first
        if launcher is None and phase in (None, "Pending"):
            launcher = await self._create_launcher(instance)
        return await self._advance(instance, launcher)

    async def _advance(self, instance: Object, launcher: Object | None) -> float | None:
        new = copy.deepcopy(instance)
        status = new.setdefault("status", {})
        again: float | None = None
        match status.get("phase"):
            case None:
                status["phase"] = "Pending"
            case "Pending":
                status["phase"] = "Scheduling"
            case "Scheduling" if launcher is not None and is_ready(launcher):
                node = launcher["spec"]["nodeName"]
                status |= {"phase": "Scheduled", "nodeName": node, "activePods": {uid_of(launcher): node}}
                new["metadata"].setdefault("labels", {})[NODE_LABEL] = node
            case "Scheduling":
                pass
            case _ if launcher is None or deleting(launcher):
                status["phase"] = "Failed"
            case _:
                again = await self._hotplug(new, launcher)
        await self._write(instance, new)
        return again

    async def _hotplug(self, instance: Object, launcher: Object) -> float | None:
        """Works on attachment pods and updates the volume status in ``instance``."""
        again: float | None = None
        try:
            doomed = await self._attachments.create_pod(instance, launcher)
        except ClaimMissingError as error:
            # A claim that is missing stops attaching and the clean-up after detaching for the whole VM.
            await self._recorder.record(VMI, instance, reason="PVCNotReady", message=str(error), kind="Warning")
            doomed, again = [], RETRY_SECONDS
        instance["status"]["volumeStatus"] = self._attachments.volume_status(instance, launcher, doomed)
        return soonest(again, await self._attachments.delete_pods(instance, doomed))

    async def _write(self, old: Object, new: Object) -> None:
        if new == old:
            return
        await self._cluster.replace(VMI, new)
        for reason, message in phase_events(old, new):
            await self._recorder.record(VMI, new, reason=reason, message=message)

    async def _clean_up(self, instance: Object, launcher: Object | None) -> None:
        """Removes the pods of a VMI that has ended; the object may go when they have."""
        pods = [pod for pod in self._cluster.find(POD, key_of(instance)[0]) if _created_by(pod, instance)]
        pods += self._attachments.pods(launcher) if launcher is not None else []
        for pod in pods:
            if not deleting(pod):
                await self._cluster.delete(POD, pod, now=pod is not launcher)
        finalizers = instance["metadata"].get("finalizers", [])
        if not pods and deleting(instance) and INSTANCE_FINALIZER in finalizers:
            new = copy.deepcopy(instance)
            new["metadata"]["finalizers"] = [each for each in finalizers if each != INSTANCE_FINALIZER]
            await self._cluster.replace(VMI, new)

    def _launcher(self, instance: Object) -> Object | None:
        pods = self._cluster.find(POD, key_of(instance)[0])
        return next((pod for pod in pods if _created_by(pod, instance)), None)

    async def _create_launcher(self, instance: Object) -> Object:
        namespace, name = key_of(instance)
        labels = {"kubevirt.io": "virt-launcher", CREATED_BY: uid_of(instance), "vm.kubevirt.io/name": name}
        return await self._cluster.create(
            POD,
            {
                "metadata": {
                    "namespace": namespace,
                    "generateName": f"virt-launcher-{name}-",
                    "labels": {**labels_of(instance), **labels},
                    "ownerReferences": [owner_reference(VMI, instance)],
                },
                "spec": {
                    "automountServiceAccountToken": False,
                    "containers": [{"name": "compute", "image": LAUNCHER_IMAGE, "resources": _resources(instance)}],
                    "restartPolicy": "Never",
                },
            },
        )


def _created_by(pod: Object, instance: Object) -> bool:
    return labels_of(pod).get(CREATED_BY) == uid_of(instance)


def _resources(instance: Object) -> Object:
    memory = dig(instance, "spec", "domain", "memory", "guest", default="1Gi")
    return {"requests": {"cpu": "100m", "memory": memory}}
