"""How a lab is put together, in the order in which it happens.

Guests need half a minute to become nodes, and both processors for it. So the control planes start side by side, while
there is nothing else to do, the guests as early as there is somebody to power them on, and the rest meanwhile. Each
part goes on the exit stack when it runs, and its watcher into the task group, so that the death of any program ends the
lab with that program's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.lab import cloudprovider, driver, gateway, gatewaycontrol, management, manifests, tenant
from e2e.lab.api import Object
from e2e.lab.controlplane import ControlPlane
from e2e.lab.ports import Ports
from e2e.lab.processes import Processes
from e2e.lab.recorder import Recorder
from e2e.lab.state import LabDirectory
from e2e.lab.tenant import Guest
from e2e.tools.build import build

VMS = ("worker-1", "worker-2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of one lab as they are started."""

    directory: LabDirectory
    recorder: Recorder
    stack: AsyncExitStack
    group: asyncio.TaskGroup
    ports: Ports = field(default_factory=Ports)

    async def start_management_only(self) -> None:
        """The control plane of the management cluster and the tenant's namespace, for work on what runs in it."""
        binaries = await asyncio.to_thread(build, "kubernetes")
        await self._start_plane(self._plane("management", binaries))

    async def start_both(self, image: Mapping[str, str]) -> None:
        """Both clusters, KubeVirt, the guests (from this image's files) and the driver, from nothing to ready."""
        self.stack.callback(self.ports.close)
        kubernetes = await asyncio.to_thread(build, "kubernetes")
        infra_objects = await manifests.render(manifests.INFRA, kubectl=kubernetes / "kubectl")
        tenant_objects = await manifests.render(manifests.TENANT, kubectl=kubernetes / "kubectl")
        infra = self._plane("management", kubernetes)
        workload = self._plane("tenant", kubernetes, scheduler=True)
        guests = [Guest(name=vm, kubelet_port=self.ports.take(), seed=self.directory.data / "seeds" / vm) for vm in VMS]

        async with asyncio.TaskGroup() as starting:
            starting.create_task(self._start_plane(workload))  # before the guests take both processors
            await self._start_plane(infra)
            await self._start_kubevirt(infra, machines=self._machines(image, guests))
            tenant.write_seeds(workload, guests)
            await management.create_machines(infra, VMS)
            self.recorder.step(f"VirtualMachines {', '.join(VMS)} are created and power on")

        api = await self.stack.enter_async_context(workload.api())
        self.group.create_task(cloudprovider.provide(api, namespace=management.NAMESPACE))
        await management.grant_controller(infra, infra_objects)
        await tenant.install_driver(workload, tenant_objects)
        self.recorder.step("the driver's manifests are applied to both clusters")
        await self._start_controller(infra, workload, objects=infra_objects)

        await management.wait_for_machines(infra, VMS)
        self.recorder.step("the VirtualMachines run")
        await tenant.wait_for_nodes(workload, guests)
        self.recorder.step("tenant Nodes are Ready")
        await tenant.wait_for_node_plugin(workload, guests)
        self.recorder.step("the node plugin is registered on every Node")

    def _plane(
        self, name: str, binaries: Path, *, scheduler: bool = False, api_server_flags: Sequence[str] = ()
    ) -> ControlPlane:
        return ControlPlane(
            name,
            self.directory.data / name,
            binaries,
            scheduler=scheduler,
            logs=self.directory.logs,
            api_server_flags=api_server_flags,
        )

    async def _start_plane(self, plane: ControlPlane) -> None:
        self.stack.push_async_exit(plane)  # before it runs: what is started as soon as it answers has to end earlier
        await plane.__aenter__()
        self._watch(plane.processes)
        self.recorder.kubeconfig(plane.name, plane.admin_kubeconfig)
        self.recorder.port(f"{plane.name}-kube-apiserver", plane.port)
        self.recorder.step(f"{plane.name} control plane is ready")

    async def _start_kubevirt(
        self, infra: ControlPlane, *, machines: Mapping[str, Any], durations: Mapping[str, float] | None = None
    ) -> None:
        await management.create_namespace(infra)
        processes = await self.stack.enter_async_context(Processes())
        await management.start_stand_in(
            infra,
            processes,
            directory=self.directory.data / "kubevirt",
            logs=self.directory.logs,
            ports=self.ports,
            machines=machines,
            durations=durations,
        )
        self._watch(processes)
        self.recorder.step("KubeVirt and CDI (stand-in) are ready")

    async def _start_controller(self, infra: ControlPlane, workload: ControlPlane, *, objects: list[Object]) -> None:
        """The pod of the controller Deployment, as processes, with the two credentials that it would be given."""
        folder = self.directory.data / "controller"
        socket, secret = folder / "socket", folder / "tenant-kubeconfig"
        for volume in (socket, secret):
            volume.mkdir(parents=True, mode=0o700)
        await workload.token_kubeconfig(
            secret / "value", namespace=tenant.DRIVER_NAMESPACE, account=tenant.SIDECAR_ACCOUNT
        )
        node = driver.Node(
            volumes={"socket": socket, "tenant-kubeconfig": secret},
            entrypoints=driver.entrypoints(await asyncio.to_thread(build, "sidecars")),
            infra_kubeconfig=await self._through_gateway(infra, folder / "infra.kubeconfig"),
            ports=self.ports,
            logs=self.directory.logs,
        )
        self.recorder.socket("controller", socket / "csi.sock")
        processes = await self.stack.enter_async_context(Processes())
        for container in driver.containers(objects, node):
            self.group.create_task(driver.keep_running(container, processes, note=self.recorder.step))
            for name, port in container.ports.items():
                self.recorder.port(f"{container.program.name}-{name}", port)
        self.recorder.follow(processes)
        self.recorder.step("controller, csi-provisioner, csi-attacher and csi-resizer are started")

    async def _through_gateway(self, infra: ControlPlane, kubeconfig: Path) -> Path:
        """The controller's credential in the management cluster, by way of a gateway that takes faults."""
        door = await self.stack.enter_async_context(gateway.serve(port=self.ports.take(), target=infra.port))
        await self.stack.enter_async_context(gatewaycontrol.listen(door, self.directory.gateway))
        self.recorder.port("management-gateway", door.port)
        return await infra.token_kubeconfig(
            kubeconfig, namespace=management.NAMESPACE, account=management.CONTROLLER_ACCOUNT, server=door.server
        )

    def _watch(self, processes: Processes) -> None:
        self.recorder.follow(processes)
        self.group.create_task(processes.watch())

    def _machines(self, image: Mapping[str, str], guests: list[Guest]) -> dict[str, Any]:
        """The hypervisor's part of the stand-in's configuration."""
        return {
            "kind": "qemu",
            "directory": str(self.directory.data / "machines"),
            "image": dict(image),
            "vms": {guest.name: {"seed": str(guest.seed), "ports": [guest.kubelet_port]} for guest in guests},
        }
