"""The lab with loop machines: the management cluster, the driver's controller, and a node role for each VM.

There is no tenant cluster: no API server, no sidecars, no kubelet. Who wants to talk CSI with the driver (csi-sanity, a
person with a gRPC client) finds its sockets in the state file, and its mounts in the lab's mount namespace. The node
role runs as a worker has it, pointed at the tree of its machine (`e2e.lab.machines.loop`).
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError

from e2e.lab import driver, management, manifests
from e2e.lab.api import Object, eventually
from e2e.lab.assembly import VMS, Assembly
from e2e.lab.controlplane import ControlPlane
from e2e.lab.driver import Container
from e2e.lab.processes import Processes, Program, run_to_end
from e2e.lab.registering import register_plugins
from e2e.tools.build import build
from kubevirt_csi._csi.csi import v1 as csi

PROGRAM = (sys.executable, "-m", "kubevirt_csi")
DRIVER_CONTAINER = "driver"
SCALE = 0.02
"""Of the stand-in's durations: what is looked at here is the driver, in as little time as possible."""
READY_SECONDS = 60.0
PROBE_SECONDS = 5.0
MOUNT_SECONDS = 10.0
# Paths of Unix sockets end at 107 bytes, and kubelet's folder has long ones below it. So the lab's folder of nodes is
# mounted here, in the lab's own mount namespace; outside of it this folder stays empty.
NODES = Path(tempfile.gettempdir()) / "kubevirt-csi-nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopAssembly(Assembly):
    """The parts of a lab with loop machines."""

    async def start_loop(self) -> None:
        """Management cluster, KubeVirt, VMs whose disks are loop devices, and the driver, from nothing to ready."""
        self.stack.callback(self.ports.close)
        binaries = await asyncio.to_thread(build, "kubernetes")
        objects = await manifests.render(manifests.INFRA, kubectl=binaries / "kubectl")
        infra = self._plane("management", binaries)
        await self._start_plane(infra)
        await self._start_kubevirt(infra, machines=self._loop_machines(), durations={"scale": SCALE})
        await infra.know_new_kinds()
        await management.create_machines(infra, VMS)
        await management.grant_controller(infra, objects)
        sockets = [await self._start_driver(infra, objects), *await self._start_nodes()]
        await management.wait_for_machines(infra, VMS)
        self.recorder.step("the VirtualMachines run")
        for socket in sockets:
            await eventually(
                partial(serves, socket), what=f"the driver is ready at {socket}", deadline_seconds=READY_SECONDS
            )
        self.recorder.step("controller and node roles of the driver are ready")

    def _loop_machines(self) -> dict[str, Any]:
        return {"kind": "loop", "directory": str(self.directory.data / "machines")}

    async def _start_driver(self, infra: ControlPlane, objects: Sequence[Object]) -> Path:
        """The driver's container of the controller Deployment, without the sidecars; returns its socket."""
        folder = self.directory.data / "controller"
        folder.mkdir(mode=0o700)
        node = driver.Node(
            volumes={"socket": folder},
            entrypoints={driver.DRIVER_IMAGE: PROGRAM},
            infra_kubeconfig=await self._through_gateway(infra, folder / "infra.kubeconfig"),
            ports=self.ports,
            logs=self.directory.logs,
        )
        await self._keep(driver.containers(without_sidecars(objects), node))
        socket = folder / "csi.sock"
        self.recorder.socket("controller", socket)
        return socket

    async def _start_nodes(self) -> list[Path]:
        """A node role for each VM, registered as kubelet would; returns their sockets."""
        folder = self.directory.data / "nodes"
        await _mount(folder, log=self.directory.logs / "mount.log")
        self.stack.push_async_callback(_unmount, log=self.directory.logs / "mount.log")
        sockets = []
        for vm in VMS:
            registry = NODES / vm / "kubelet" / "plugins_registry"
            registry.mkdir(parents=True)
            await self._keep([self._node(vm)])
            self.group.create_task(register_plugins(registry, note=self.recorder.step))
            sockets.append(folder / vm / "csi.sock")
            self.recorder.socket(vm, sockets[-1])
        return sockets

    def _node(self, vm: str) -> Container:
        folder, machine = NODES / vm, self.directory.data / "machines" / vm
        name, port = f"node-{vm}", self.ports.take()
        arguments = [
            "node",
            f"--node-id={management.NAMESPACE}/{vm}",
            f"--endpoint=unix://{folder}/csi.sock",
            f"--kubelet-dir={folder}/kubelet",
            f"--state-dir={folder}/state",
            f"--sysfs-root={machine}/sys",
            f"--dev-root={machine}/dev",
            f"--http-address=127.0.0.1:{port}",
        ]
        program = Program(
            name=name, argv=[*PROGRAM, *arguments], log=self.directory.logs / f"{name}.log", directory=driver.REPOSITORY
        )
        return Container(program=program, ports={"http": port})

    async def _keep(self, containers: Sequence[Container]) -> None:
        """Keeps the containers running, and records what a person wants to know of them."""
        processes = await self.stack.enter_async_context(Processes())
        for container in containers:
            self.group.create_task(driver.keep_running(container, processes, note=self.recorder.step))
            for name, port in container.ports.items():
                self.recorder.port(f"{container.program.name}-{name}", port)
        self.recorder.follow(processes)


def without_sidecars(objects: Sequence[Object]) -> list[Object]:
    """The same objects, with nothing but the driver in the pod of the Deployment."""
    copies = copy.deepcopy(list(objects))
    for deployment in manifests.named(copies, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        pod["containers"] = [each for each in pod["containers"] if each["name"] == DRIVER_CONTAINER]
    return copies


async def serves(socket: Path) -> bool:
    """Whether the driver answers there that it is ready."""
    try:
        async with Channel(path=str(socket)) as channel:
            answer = await csi.IdentityStub(channel).probe(csi.ProbeRequest(), timeout=PROBE_SECONDS)
    except (OSError, TimeoutError, GRPCError, StreamTerminatedError):
        return False
    return bool(answer.ready)


async def _mount(folder: Path, *, log: Path) -> None:
    """Shows the lab's folder of nodes under a short path, to the processes of the lab."""
    for place in (folder, NODES):
        os.makedirs(place, exist_ok=True)  # noqa: PTH103 - instant
    await _run(["mount", "--bind", str(folder), str(NODES)], log=log)


async def _unmount(*, log: Path) -> None:
    """Takes everything away that is still mounted below, so that the lab's folder can be removed."""
    await _run(["umount", "--recursive", "--lazy", str(NODES)], log=log)


async def _run(argv: Sequence[str], *, log: Path) -> None:
    await run_to_end(Program(name=" ".join(argv), argv=argv, log=log), seconds=MOUNT_SECONDS)
