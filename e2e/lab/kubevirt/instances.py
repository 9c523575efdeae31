"""VirtualMachineInstances: virt-controller's part of their life, from Pending to Scheduled and again at their end.

virt-handler's part is in ``handler``; the two write the same object and meet only in its resourceVersion, as the real
ones do. The surprising facts: a launcher pod that is gone is the end of the VMI, whatever the machine does; and from
its deletion on, nothing tells what becomes of a VMI's volumes.
"""

from __future__ import annotations

import copy

from e2e.lab.kubevirt.attachments import Attachments
from e2e.lab.kubevirt.backing import Backing, ClaimMissingError
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import set_condition
from e2e.lab.kubevirt.faults import Faults, faults_of
from e2e.lab.kubevirt.launchers import launcher_of, launcher_pod, launchers_of
from e2e.lab.kubevirt.migrations import NODE_LABEL, Migrations, in_progress
from e2e.lab.kubevirt.pods import is_ready
from e2e.lab.kubevirt.reconciling import soonest
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import POD, VM, VMI, Key, Object, deleting, dig, uid_of
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.volume_status import phase_events, volume_status

INSTANCE_FINALIZER = "kubevirt.io/foregroundDeleteVirtualMachine"
FINAL_PHASES = ("Succeeded", "Failed")
RESTART = "lab.csi.kubevirt.io/restart"
RETRY_SECONDS = 1.0


class Instances:
    """Reconciles VMIs as virt-controller does."""

    def __init__(self, cluster: Cluster, backing: Backing, durations: Durations) -> None:
        self._cluster = cluster
        self._backing = backing
        self._recorder = Recorder(cluster, "virtualmachine-controller")
        self._attachments = Attachments(cluster, backing, recorder=self._recorder, durations=durations)
        self._migrations = Migrations(cluster, self._attachments, recorder=self._recorder)

    async def reconcile(self, key: Key) -> float | None:
        """Takes the VMI one step further."""
        instance = self._cluster.get(VMI, key)
        if await self._restart(key, instance) or instance is None:
            return None
        faults = self._backing.faults(instance)
        launcher = launcher_of(self._cluster, instance)
        phase = dig(instance, "status", "phase")
        if phase in FINAL_PHASES or (deleting(instance) and phase not in ("Scheduled", "Running")):
            await self._clean_up(instance, launcher)
            return None
        if deleting(instance) and launcher is not None:
            return None  # the handler stops the machine first
        if launcher is None and phase in (None, "Pending"):
            launcher = await self._cluster.create(POD, launcher_pod(instance))
        return await self._advance(instance, launcher, faults)

    async def _restart(self, key: Key, instance: Object | None) -> bool:
        """Carries out a restart that was ordered at the VM, and takes the order away; says whether there was one."""
        if not faults_of(self._cluster.get(VM, key)).restart:
            return False
        if instance is not None and not deleting(instance):
            await self._cluster.delete(VMI, instance)
        await self._cluster.patch(VM, key, {"metadata": {"annotations": {RESTART: None}}})
        return True

    async def _advance(self, instance: Object, launcher: Object | None, faults: Faults) -> float | None:
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
                _fail(status, fenced=faults.virt_handler_down)
            case _:
                again = await self._hotplug(new, launcher)
                await self._migrations.advance(new, wanted=faults.migration)
                await self._drop_left_launchers(new, launcher)
        await self._write(instance, new)
        return again

    async def _hotplug(self, instance: Object, launcher: Object) -> float | None:
        """Works on attachment pods and updates the volume status in ``instance``."""
        again: float | None = None
        try:
            doomed = await self._attachments.work(instance, launcher)
        except ClaimMissingError as error:
            # A claim that is missing stops attaching and the clean-up after detaching for the whole VM.
            await self._recorder.record(VMI, instance, reason="PVCNotReady", message=str(error), kind="Warning")
            doomed, again = [], RETRY_SECONDS
        pods = self._attachments.pods(launcher)
        instance["status"]["volumeStatus"] = volume_status(instance, self._backing, pods=pods, doomed=doomed)
        return soonest(again, await self._attachments.delete(instance, doomed))

    async def _drop_left_launchers(self, instance: Object, launcher: Object) -> None:
        """Ends the launcher pod that a migration, ended before this round, has left behind."""
        if in_progress(instance):
            return
        node = instance["status"]["nodeName"]
        for pod in launchers_of(self._cluster, instance):
            if uid_of(pod) != uid_of(launcher) and pod["spec"].get("nodeName") != node and not deleting(pod):
                await self._cluster.delete(POD, pod)

    async def _write(self, old: Object, new: Object) -> None:
        if new == old:
            return
        await self._cluster.replace(VMI, new)
        await self._recorder.record_all(VMI, new, phase_events(old, new))

    async def _clean_up(self, instance: Object, launcher: Object | None) -> None:
        """Removes the pods of a VMI that has ended; the object may go when they have."""
        launchers = launchers_of(self._cluster, instance)
        pods = [*launchers, *(pod for each in launchers for pod in self._attachments.all_pods(each))]
        for pod in pods:
            if not deleting(pod):
                await self._cluster.delete(POD, pod, now=pod is not launcher)
        finalizers = instance["metadata"].get("finalizers", [])
        if not pods and deleting(instance) and INSTANCE_FINALIZER in finalizers:
            new = copy.deepcopy(instance)
            new["metadata"]["finalizers"] = [each for each in finalizers if each != INSTANCE_FINALIZER]
            await self._cluster.replace(VMI, new)


def _fail(status: Object, *, fenced: bool) -> None:
    """The launcher pod is gone; of a node whose virt-handler is silent it is said that it does not respond."""
    status["phase"] = "Failed"
    if fenced:
        status["reason"] = "NodeUnresponsive"
    set_condition(status, "Ready", value=False, reason="GuestNotRunning")
