"""Tenant Nodes without machines: registered and kept alive, and running their pods by saying so.

What a cluster sees of a kubelet is here: lease and heartbeat, the CSINode that the driver's node plugin would bring
about, and pods that start when their volumes are attached and end when they are deleted. Nothing is mounted.
The surprising fact: kube-controller-manager detaches a volume only when ``status.volumesInUse`` of the Node is free of
it (else after six minutes), so volumes are told to be in use before they are attached, and free before the pod goes.
Source: Kubernetes pkg/kubelet/volumemanager, pkg/controller/volume/attachdetach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from e2e.lab.cloudprovider import NAMESPACE_ANNOTATION, wanted_addresses
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import connect
from e2e.lab.kubevirt.heartbeats import beat
from e2e.lab.kubevirt.pods import report_pod
from e2e.lab.kubevirt.reconciling import Reconciler, Stopwatch
from e2e.lab.kubevirt.recording import now
from e2e.lab.kubevirt.resources import CLAIM, NODE, POD, VOLUME, Key, Object, Resource, deleting, dig, key_of
from e2e.lab.kubevirt.resources import uid_of as uid
from e2e.lab.kubevirt.settings import Durations

CSI_NODE = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
CONTROLLER_ATTACHES = "volumes.kubernetes.io/controller-managed-attach-detach"
HEARTBEAT_SECONDS = 10.0


class PretendedNodes:
    """The kubelets of some Nodes.

    Args:
        cluster: the tenant's, with pods, claims, volumes and Nodes in its caches.
        node_ids: the CSI node id by the Node's name.
        driver: the CSI driver that is registered on every Node.
        durations: how long pods take to start and to end.
    """

    def __init__(self, cluster: Cluster, *, node_ids: Mapping[str, str], driver: str, durations: Durations) -> None:
        self._cluster = cluster
        self._node_ids = node_ids
        self._driver = driver
        self._durations = durations
        self._steps = Stopwatch()
        self._in_use: dict[str, dict[str, frozenset[str]]] = {name: {} for name in node_ids}
        self._telling = {name: asyncio.Lock() for name in node_ids}

    async def register(self) -> None:
        """Brings the Nodes and their CSINodes into being, Ready and without taints."""
        await asyncio.gather(*(self._register(name) for name in self._node_ids))

    async def live(self) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for name in self._node_ids:
                await self._beat(name)

    async def reconcile(self, key: Key) -> float | None:
        """Takes a pod one step further."""
        pod = self._cluster.get(POD, key)
        if pod is None or pod["spec"].get("nodeName") not in self._node_ids:
            return None
        if deleting(pod):
            return await self._end(pod)
        if pod["status"]["phase"] == "Pending":
            return await self._run(pod)
        return None

    async def _register(self, name: str) -> None:
        namespace = self._node_ids[name].partition("/")[0]
        metadata = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            "annotations": {CONTROLLER_ATTACHES: "true", NAMESPACE_ANNOTATION: namespace},
        }
        node = {"metadata": metadata, "spec": {"providerID": f"kubevirt://{name}"}}
        created = await self._cluster.create(NODE, node)
        await self._beat(name)
        await self._cluster.patch(NODE, ("", name), {"spec": {"taints": None}})  # the one that every new Node gets
        owner = {"apiVersion": "v1", "kind": NODE.kind, "name": name, "uid": uid(created)}
        await self._cluster.create(
            CSI_NODE,
            {
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": {"drivers": [{"name": self._driver, "nodeID": self._node_ids[name], "topologyKeys": []}]},
            },
        )

    async def _beat(self, name: str) -> None:
        await beat(self._cluster, name, addresses=wanted_addresses({"metadata": {"name": name}}))

    async def _run(self, pod: Object) -> float | None:
        """Waits for the pod's volumes, then for its containers, which are none."""
        node: str = pod["spec"]["nodeName"]
        volumes = self._volumes(pod)
        if volumes is None:
            return None
        await self._use(node, uid(pod), volumes)
        attached = dig(self._cluster.get(NODE, ("", node)), "status", "volumesAttached", default=[])
        if volumes - {each["name"] for each in attached}:
            return None
        left = self._steps.left(self._durations.pod_ready, uid(pod), "ready")
        if left:
            return left
        await report_pod(self._cluster, pod, phase="Running", state={"running": {"startedAt": now()}})
        return None

    async def _end(self, pod: Object) -> float | None:
        left = self._steps.left(self._durations.pod_gone, uid(pod), "gone")
        if left:
            return left
        self._steps.forget(uid(pod))
        await self._use(pod["spec"]["nodeName"], uid(pod), frozenset())
        await self._cluster.delete(POD, pod, now=True)
        return None

    async def _use(self, node: str, pod_uid: str, volumes: frozenset[str]) -> None:
        """Tells in the Node that the pod uses these volumes, and no others any more."""
        pods = self._in_use[node]
        if volumes == pods.get(pod_uid, frozenset()):
            return
        async with self._telling[node]:
            pods[pod_uid] = volumes
            if not volumes:
                del pods[pod_uid]
            told = sorted(frozenset().union(*pods.values()))
            await self._cluster.patch(NODE, ("", node), {"status": {"volumesInUse": told}}, subresource="/status")

    def _volumes(self, pod: Object) -> frozenset[str] | None:
        """The unique names of the pod's attachable volumes; None while a claim of it is not bound."""
        names = set()
        for claim_key in claims_of(pod):
            claim = self._cluster.get(CLAIM, claim_key)
            volume = self._cluster.get(VOLUME, ("", dig(claim, "spec", "volumeName", default="")))
            if volume is None:
                return None
            source = dig(volume, "spec", "csi", default={})
            if source.get("driver") == self._driver:
                names.add(f"kubernetes.io/csi/{self._driver}^{source['volumeHandle']}")
        return frozenset(names)


def claims_of(pod: Object) -> list[Key]:
    """The claims that the pod mounts; that of a generic ephemeral volume is named after pod and volume."""
    namespace, name = key_of(pod)
    keys = []
    for volume in pod["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            keys.append((namespace, volume["persistentVolumeClaim"]["claimName"]))
        elif "ephemeral" in volume:
            keys.append((namespace, f"{name}-{volume['name']}"))
    return keys


async def pretend(
    kubeconfig: Path, *, vms: Sequence[str], namespace: str, driver: str, durations: Durations, ready: asyncio.Event
) -> None:
    """Keeps the Nodes of these VMs until cancelled.

    Args:
        kubeconfig: of the tenant's administrator.
        vms: Nodes have their names.
        namespace: of the VMs, as node ids have it.
        driver: the CSI driver that is registered.
        durations: how long things take.
        ready: set when the Nodes are registered.
    """
    async with connect(kubeconfig) as connection, asyncio.TaskGroup() as tasks:
        cluster = Cluster(connection, (POD, CLAIM, VOLUME, NODE))
        nodes = PretendedNodes(
            cluster, node_ids={vm: f"{namespace}/{vm}" for vm in vms}, driver=driver, durations=durations
        )
        pods = Reconciler("tenant pod", nodes.reconcile)

        def everybody(_: Object) -> None:
            _add(pods, (pod for pod in cluster.find(POD) if dig(pod, "status", "phase") == "Pending"))

        cluster.caches[POD].listen(lambda pod: pods.add(key_of(pod)))
        for resource in (CLAIM, VOLUME, NODE):
            cluster.caches[resource].listen(everybody)
        tasks.create_task(cluster.run())
        await nodes.register()
        tasks.create_task(nodes.live())
        ready.set()
        await pods.run()


def _add(pods: Reconciler, found: Iterable[Object]) -> None:
    for pod in found:
        pods.add(key_of(pod))
