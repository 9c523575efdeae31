"""The tenant cluster: its control plane, the credentials of its nodes, and the driver's tenant half as shipped.

Nodes are guests that the management cluster's VMs boot; each finds its kubelet's files on its seed disk. Nothing here
knows how a guest is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.lab import manifests
from e2e.lab.api import Api, Object, eventually
from e2e.lab.controlplane import GUEST_VIEW, ControlPlane
from e2e.lab.images.seed import write_seed

DRIVER_NAMESPACE = "kubevirt-csi-driver"
DRIVER_NAME = "csi.kubevirt.io"
SIDECAR_ACCOUNT = "kubevirt-csi-controller-sa"
NODES_SECONDS = 300.0
PLUGIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A node to be: the name of the VM and of the Node, and the port its kubelet has on the host's loopback."""

    name: str
    kubelet_port: int
    seed: Path


def write_seeds(plane: ControlPlane, guests: Sequence[Guest]) -> None:
    """Writes every guest's seed: a kubelet credential of its own, and how to reach this control plane from inside."""
    server = f"https://{GUEST_VIEW}:{plane.port}"
    for number, guest in enumerate(guests, start=1):
        credential = plane.client_kubeconfig(f"system:node:{guest.name}", ["system:nodes"], server=server)
        write_seed(
            guest.seed,
            node=guest.name,
            api_port=plane.port,
            kubelet_port=guest.kubelet_port,
            kubeconfig=credential.decode(),
            client_ca=plane.authority_certificate.decode(),
            pod_subnet=f"10.244.{number}.0/24",
        )


async def install_driver(plane: ControlPlane, objects: Sequence[Object]) -> None:
    """Applies what deploy/tenant ships."""
    async with plane.api() as api:
        await manifests.apply(api, objects)


async def wait_for_nodes(plane: ControlPlane, guests: Sequence[Guest]) -> None:
    """Returns when every guest's Node is Ready and free of taints.

    Raises:
        TimeoutError: one is not in time.
    """
    async with plane.api() as api:
        for guest in guests:

            async def ready(name: str = guest.name) -> bool:
                node = await api.find(f"/api/v1/nodes/{name}")
                return node is not None and _condition(node, "Ready") and not node["spec"].get("taints")

            await eventually(ready, what=f"tenant Node {guest.name} is Ready", deadline_seconds=NODES_SECONDS)


async def wait_for_node_plugin(plane: ControlPlane, guests: Sequence[Guest]) -> None:
    """Returns when the driver's DaemonSet is ready everywhere and every kubelet has registered the driver.

    Raises:
        TimeoutError: not in time; the text says what was seen last.
    """
    async with plane.api() as api:
        for guest in guests:

            async def registered(name: str = guest.name) -> bool:
                node = await api.find(f"/apis/storage.k8s.io/v1/csinodes/{name}")
                drivers: list[Any] = ((node or {}).get("spec") or {}).get("drivers") or []
                return any(driver["name"] == DRIVER_NAME for driver in drivers)

            what = f"driver {DRIVER_NAME} is registered on tenant Node {guest.name}"
            await eventually(registered, what=what, deadline_seconds=PLUGIN_SECONDS)
        await eventually(
            lambda: _rolled_out(api), what="DaemonSet kubevirt-csi-node is ready", deadline_seconds=PLUGIN_SECONDS
        )


async def _rolled_out(api: Api) -> bool:
    plugin = await api.get(f"/apis/apps/v1/namespaces/{DRIVER_NAMESPACE}/daemonsets/kubevirt-csi-node")
    status = plugin.get("status", {})
    wanted: int = status.get("desiredNumberScheduled", 0)
    return wanted > 0 and bool(status.get("numberReady", 0) == wanted)


def _condition(item: Object, kind: str) -> bool:
    conditions = item.get("status", {}).get("conditions", [])
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)
