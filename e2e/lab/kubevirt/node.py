"""The infra Node: registered, kept alive, and running the pods of the management cluster by saying so.

It plays scheduler and kubelet for launcher, attachment and importer pods, which are real Pod objects: they count
against quotas and hold their claims under pvc-protection. Nothing is executed in them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import NoReturn

import structlog

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.reconciling import Stopwatch
from e2e.lab.kubevirt.recording import now
from e2e.lab.kubevirt.resources import LEASE, NODE, POD, Key, Object, deleting, dig, labels_of, uid_of
from e2e.lab.kubevirt.settings import Durations

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}
IMPORTER = ("cdi.kubevirt.io", "importer")

log = structlog.get_logger()


class Node:
    """One Node and the pods on it."""

    def __init__(self, cluster: Cluster, name: str, durations: Durations) -> None:
        self._cluster = cluster
        self._name = name
        self._durations = durations
        self._steps = Stopwatch()

    async def register(self) -> None:
        """Creates the Node, or takes over the one that is there, and says that it is ready."""
        labels = {"kubernetes.io/hostname": self._name, "kubevirt.io/schedulable": "true"}
        await self._cluster.apply(NODE, {"metadata": {"name": self._name, "labels": labels}})
        await self._beat()

    async def live(self) -> NoReturn:
        """Sends heartbeats for ever."""
        while True:
            await asyncio.sleep(self._durations.heartbeat)
            try:
                await self._beat()
            except ApiError as error:
                log.warning("heartbeat", node=self._name, error=str(error))

    async def _beat(self) -> None:
        renewed = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
        await self._cluster.apply(LEASE, {"metadata": {"namespace": LEASE_NAMESPACE, "name": self._name}, "spec": spec})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": now(),
        }
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": self._name}],
            "conditions": [ready],
        }
        await self._cluster.apply(NODE, {"metadata": {"name": self._name}, "status": status}, subresource="/status")

    async def reconcile(self, key: Key) -> float | None:
        """Takes a pod one step further."""
        pod = self._cluster.get(POD, key)
        if pod is None or pod["spec"].get("nodeName", self._name) != self._name:
            return None
        if deleting(pod):
            return await self._end(pod)
        if "nodeName" not in pod["spec"]:
            return await self._schedule(key, pod)
        if pod["status"]["phase"] == "Pending":
            return await self._run(key, pod)
        if pod["status"]["phase"] == "Running" and labels_of(pod).get(IMPORTER[0]) == IMPORTER[1]:
            return await self._complete(key, pod)
        return None

    async def _schedule(self, key: Key, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_scheduled, uid_of(pod), "scheduled")
        if left:
            return left
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key[1], "uid": uid_of(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._name},
        }
        await self._cluster.connection.request("POST", f"{POD.path(key)}/binding", body=binding)
        return None

    async def _run(self, key: Key, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_ready, uid_of(pod), "ready")
        if left:
            return left
        await self._report(key, pod, phase="Running", ready=True, state={"running": {"startedAt": now()}})
        return None

    async def _complete(self, key: Key, pod: Object) -> float | None:
        left = self._steps.left(self._durations.importer, uid_of(pod), "completed")
        if left:
            return left
        state = {
            "terminated": {"exitCode": 0, "reason": "Completed", "message": "Import Complete", "finishedAt": now()}
        }
        await self._report(key, pod, phase="Succeeded", ready=False, state=state)
        return None

    async def _end(self, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_gone, uid_of(pod), "gone")
        if left:
            return left
        self._steps.forget(uid_of(pod))
        await self._cluster.delete(POD, pod, now=True)
        return None

    async def _report(self, key: Key, pod: Object, *, phase: str, ready: bool, state: Object) -> None:
        status = "True" if ready else "False"
        conditions = [
            {"type": kind, "status": "True" if kind in ("PodScheduled", "Initialized") else status}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": container["image"],
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            }
            for container in pod["spec"]["containers"]
        ]
        report = {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": containers,
            "startTime": dig(pod, "status", "startTime", default=now()),
        }
        await self._cluster.patch(POD, key, {"status": report}, subresource="/status")


def is_ready(pod: Object) -> bool:
    """Whether all containers of the pod are ready."""
    statuses = dig(pod, "status", "containerStatuses", default=[])
    return bool(statuses) and all(status["ready"] for status in statuses)
