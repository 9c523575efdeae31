"""The pods of the management cluster, run by saying so: what its kubelets do, after the scheduler's choice.

Launcher, attachment and importer pods are real Pod objects: they count against quotas and hold their claims under
pvc-protection. Nothing is executed in them; what an importer's process does is in ``importer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.lab.kubevirt.backing import Backing
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.reconciling import Stopwatch
from e2e.lab.kubevirt.recording import now
from e2e.lab.kubevirt.resources import POD, VMI, Key, Object, controller_of, deleting, dig, key_of, labels_of, uid_of
from e2e.lab.kubevirt.scheduling import Scheduler
from e2e.lab.kubevirt.settings import Durations

MACHINE_NAME = "vm.kubevirt.io/name"


class Pods:
    """Reconciles the pods of these Nodes."""

    def __init__(self, cluster: Cluster, backing: Backing, *, nodes: Sequence[str], durations: Durations) -> None:
        self._cluster = cluster
        self._backing = backing
        self._nodes = nodes
        self._durations = durations
        self._scheduler = Scheduler(cluster, nodes)
        self._steps = Stopwatch()

    async def reconcile(self, key: Key) -> float | None:
        """Takes a pod one step further."""
        pod = self._cluster.get(POD, key)
        if pod is None or pod["spec"].get("nodeName", self._nodes[0]) not in self._nodes:
            return None
        if deleting(pod):
            return await self._end(pod)
        if "nodeName" not in pod["spec"]:
            return await self._schedule(key, pod)
        if pod["status"]["phase"] == "Pending":
            return await self._run(pod)
        return None

    async def _schedule(self, key: Key, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_scheduled, uid_of(pod), "scheduled")
        if left:
            return left
        node = await self._scheduler.place(pod)
        if node is None:
            return self._durations.retry  # a change of a claim comes sooner; a Node's is not watched
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key[1], "uid": uid_of(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._cluster.connection.request("POST", f"{POD.path(key)}/binding", body=binding)
        return None

    async def _run(self, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_ready, uid_of(pod), "ready")
        if left:
            return left
        if self._cannot_mount(pod):
            return self._durations.retry
        await report_pod(self._cluster, pod, phase="Running", state={"running": {"startedAt": now()}})
        return None

    def _cannot_mount(self, pod: Object) -> bool:
        """Whether it was ordered that a volume of the attachment pod never gets beyond AttachedToNode."""
        owner = controller_of(pod)
        launcher = self._cluster.get(POD, (key_of(pod)[0], owner["name"])) if owner else None
        machine = labels_of(launcher).get(MACHINE_NAME, "") if launcher is not None else ""
        instance = self._cluster.get(VMI, (key_of(pod)[0], machine))
        if instance is None:
            return False
        claims = [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
        return any(self._backing.faults(instance, volume).stuck_attach == "AttachedToNode" for volume in claims)

    async def _end(self, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_gone, uid_of(pod), "gone")
        if left:
            return left
        self._steps.forget(uid_of(pod))
        await self._cluster.delete(POD, pod, now=True)
        return None


async def report_pod(cluster: Cluster, pod: Object, *, phase: str, **container: Any) -> None:
    """Writes the pod's phase, and fields of its containers' statuses, into its status, as its kubelet does."""
    running = "running" in container["state"]
    conditions = [
        {"type": kind, "status": str(running or kind in ("PodScheduled", "Initialized"))}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    statuses = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": each["image"],
            "ready": running,
            "started": running,
            "restartCount": 0,
            **container,
        }
        for each in pod["spec"]["containers"]
    ]
    report = {
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": statuses,
        "startTime": dig(pod, "status", "startTime", default=now()),
    }
    await cluster.patch(POD, key_of(pod), {"status": report}, subresource="/status")


def is_ready(pod: Object) -> bool:
    """Whether all containers of the pod are ready."""
    statuses = dig(pod, "status", "containerStatuses", default=[])
    return bool(statuses) and all(status["ready"] for status in statuses)
