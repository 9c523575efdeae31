"""What KubeVirt's cloud provider does for tenant Nodes, as far as the driver and kube-apiserver depend on it.

A kubelet with ``--cloud-provider=external`` registers a tainted Node without addresses. The provider names the VM
behind it (``spec.providerID``), tells its addresses, and takes the taint away. Cluster API adds the annotation with the
VM's namespace, which the provider ID lacks. The address is the host's loopback: each guest's kubelet has a port of its
own there, forwarded into it, and this is how ``kubectl exec`` and ``kubectl logs`` reach it.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from e2e.lab.api import Api, ApiError, Object
from e2e.lab.processes import Pause

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
NAMESPACE_ANNOTATION = "cluster.x-k8s.io/cluster-namespace"
INTERVAL_SECONDS = 0.5


async def provide(api: Api, *, namespace: str, pause: Pause = asyncio.sleep) -> NoReturn:
    """Looks after all Nodes until cancelled; an API server that does not answer is asked again.

    Args:
        api: the tenant cluster.
        namespace: where the VMs live in the management cluster.
        pause: time, for tests.
    """
    while True:
        try:
            for node in (await api.get("/api/v1/nodes"))["items"]:
                await _initialize(api, node, namespace=namespace)
        except ApiError as error:
            if not error.passing and error.status not in {404, 409}:  # the Node has gone or changed meanwhile
                raise
        await pause(INTERVAL_SECONDS)


async def _initialize(api: Api, node: Object, *, namespace: str) -> None:
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    addresses = wanted_addresses(node)
    if node["status"].get("addresses") != addresses:
        await api.patch(f"{path}/status", {"status": {"addresses": addresses}})
    change = wanted_change(node, namespace=namespace)
    if change is not None:
        await api.patch(path, change)


def wanted_addresses(node: Object) -> list[Object]:
    """The addresses of a guest that shares the host's loopback."""
    return [
        {"type": "InternalIP", "address": "127.0.0.1"},
        {"type": "Hostname", "address": node["metadata"]["name"]},
    ]


def wanted_change(node: Object, *, namespace: str) -> Object | None:
    """A merge patch with what is still missing, bound to the version that was read; None when nothing is."""
    metadata, spec = node["metadata"], node["spec"]
    taints = [taint for taint in spec.get("taints", []) if taint["key"] != UNINITIALIZED]
    provider_id = f"kubevirt://{metadata['name']}"
    if (
        spec.get("providerID") == provider_id
        and metadata.get("annotations", {}).get(NAMESPACE_ANNOTATION) == namespace
        and taints == spec.get("taints", [])
    ):
        return None
    return {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {NAMESPACE_ANNOTATION: namespace},
        },
        "spec": {"providerID": provider_id, "taints": taints},
    }
