"""The management cluster: its control plane, the KubeVirt and CDI stand-in, the tenant's namespace and its VMs.

What the driver's controller may do here is what deploy/infra says: its account, Role and RoleBinding are applied as
shipped. The Deployment is not, because no kubelet of this cluster could run it (`e2e.lab.driver` does).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.lab import manifests
from e2e.lab.api import ApiError, Object, eventually
from e2e.lab.controlplane import ControlPlane
from e2e.lab.ports import Ports
from e2e.lab.processes import Process, Processes, Program

NAMESPACE = "tenant-a"
TENANT_LABELS = {"csi.kubevirt.io/cluster": "tenant-a"}
CONTROLLER_ACCOUNT = "kubevirt-csi"
STAND_IN = "kubevirt"
# The aggregated API is verified by the name of its Service, the webhooks are called on localhost.
STAND_IN_HOSTS = ("virt-api.kubevirt.svc", "localhost", "127.0.0.1")
REPOSITORY = Path(__file__).parents[2]
READY_SECONDS = 60.0
RUNNING_SECONDS = 90.0

VMS = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines"
VMIS = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances"
SUBRESOURCES = "/apis/subresources.kubevirt.io/v1"


async def create_namespace(plane: ControlPlane) -> None:
    """The namespace in which the tenant's VMs and volumes live."""
    async with plane.api() as api:
        await api.ensure(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )


async def start_stand_in(
    plane: ControlPlane,
    processes: Processes,
    *,
    directory: Path,
    logs: Path,
    ports: Ports,
    machines: Mapping[str, Any],
    durations: Mapping[str, float] | None = None,
) -> Process:
    """Starts KubeVirt and CDI, and returns when kube-apiserver serves their APIs, the aggregated one included.

    Args:
        plane: of the management cluster.
        processes: what the stand-in is to be ended with.
        directory: for its configuration, its serving certificate and the volumes' image files.
        logs: where it logs.
        ports: gives it those that it needs.
        machines: the hypervisor, as the stand-in's configuration has it.
        durations: those that are not to be a real cluster's, as there.
    """
    config_file = _configure_stand_in(plane, directory, ports=ports, machines=machines, durations=durations or {})
    program = Program(
        name=STAND_IN,
        argv=[sys.executable, "-m", "e2e.lab.kubevirt", "--config", str(config_file)],
        log=logs / f"{STAND_IN}.log",
        directory=REPOSITORY,
    )
    async with plane.api() as api:

        async def serves() -> bool:
            try:
                return all([await api.find(path) for path in (VMS, VMIS, SUBRESOURCES)])
            except ApiError as error:
                if error.passing:  # new kinds answer 429 at first, an aggregated API 503 until it is found available
                    return False
                raise

        return await processes.start(program, ready=serves, deadline_seconds=READY_SECONDS)


def _configure_stand_in(
    plane: ControlPlane, directory: Path, *, ports: Ports, machines: Mapping[str, Any], durations: Mapping[str, float]
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    serving = plane.authority.issue_server(STAND_IN_HOSTS[0], STAND_IN_HOSTS).write(directory, "serving")
    authority = directory / "ca.crt"
    authority.write_bytes(plane.authority_certificate)
    configuration = {
        "kubeconfig": str(plane.admin_kubeconfig),
        "storage": str(directory / "volumes"),
        "serving": {
            "port": ports.take(),
            "cdi_port": ports.take(),
            "certificate": str(serving.certificate),
            "key": str(serving.key),
            "ca": str(authority),
        },
        "machines": dict(machines),
        "durations": dict(durations),
    }
    path = directory / "config.json"
    path.write_text(json.dumps(configuration, indent=2))
    return path


async def grant_controller(plane: ControlPlane, objects: Sequence[Object]) -> None:
    """Applies what deploy/infra ships, the Deployment apart."""
    async with plane.api() as api:
        await manifests.apply(api, [item for item in objects if item["kind"] != "Deployment"])


async def create_machines(plane: ControlPlane, names: Sequence[str]) -> None:
    """Creates the tenant's VMs; the stand-in powers them on.

    By apply: kube-apiserver keeps a POST waiting for two seconds while the kind is new, for the sake of its replicas.
    """
    async with plane.api() as api:
        for name in names:
            await api.apply(f"{VMS}/{name}", virtual_machine(name))


async def wait_for_machines(plane: ControlPlane, names: Sequence[str]) -> None:
    """Returns when every VM's instance is Running.

    Raises:
        TimeoutError: one is not in time.
    """
    async with plane.api() as api:
        for name in names:

            async def runs(name: str = name) -> bool:
                instance = await api.find(f"{VMIS}/{name}")
                return instance is not None and instance.get("status", {}).get("phase") == "Running"

            await eventually(runs, what=f"VirtualMachineInstance {name} is Running", deadline_seconds=RUNNING_SECONDS)


def virtual_machine(name: str) -> Object:
    """A tenant node as Cluster API's KubeVirt provider would write it, shortened to what matters here."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": TENANT_LABELS},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "metadata": {"labels": TENANT_LABELS | {"kubevirt.io/vm": name}},
                "spec": {
                    "domain": {
                        "cpu": {"cores": 2},
                        "memory": {"guest": "1536Mi"},
                        "devices": {
                            "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                            "interfaces": [{"name": "default", "masquerade": {}}],
                        },
                    },
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": [{"name": "root", "containerDisk": {"image": "localhost/lab/node:1"}}],
                },
            },
        },
    }
