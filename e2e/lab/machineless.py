"""The lab without machines: both clusters, KubeVirt and the driver with its sidecars, up in a few seconds.

VMs and tenant Nodes exist by what the APIs say about them; everything that talks to those APIs is real. What can be
started side by side is, because each program alone waits most of its time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.lab import management, manifests, tenant
from e2e.lab.api import Object
from e2e.lab.assembly import VMS, Assembly
from e2e.lab.controlplane import ControlPlane
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.pretended import pretend
from e2e.tools.build import build

AUDIT_LOG = "management-audit.log"
DRIVER_USER = f"system:serviceaccount:{management.NAMESPACE}:{management.CONTROLLER_ACCOUNT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinelessAssembly(Assembly):
    """The parts of a lab without machines."""

    async def start_machineless(self, *, durations: Mapping[str, float], audit: bool) -> None:
        """Both clusters, KubeVirt, pretended Nodes and the driver, from nothing to ready.

        Args:
            durations: of the stand-in, in seconds, and their ``scale``; those left out are a real cluster's.
            audit: log what the driver asks the management cluster for.
        """
        self.stack.callback(self.ports.close)
        binaries = await asyncio.to_thread(build, "kubernetes")
        infra = self._plane("management", binaries, api_server_flags=self._audit_flags() if audit else ())
        workload = self._plane("tenant", binaries, scheduler=True)
        async with asyncio.TaskGroup() as starting:
            for plane in (infra, workload):
                starting.create_task(self._start_plane(plane))
            kubevirt = starting.create_task(self._kubevirt(infra, durations))
            infra_objects = starting.create_task(self._granted(infra, binaries / "kubectl"))
            await self._tenant_half(workload, binaries / "kubectl", durations)
            await self._start_controller(infra, workload, objects=await infra_objects)
            await kubevirt

    def _audit_flags(self) -> list[str]:
        """Flags of kube-apiserver: the driver's requests, as JSON lines, each when it is answered."""
        rules = [{"level": "Metadata", "users": [DRIVER_USER]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        file = self.directory.data / "audit-policy.json"
        file.write_text(json.dumps(policy))
        return [f"--audit-policy-file={file}", f"--audit-log-path={self.directory.logs / AUDIT_LOG}"]

    async def _kubevirt(self, infra: ControlPlane, durations: Mapping[str, float]) -> None:
        await infra.answering.wait()
        machines = {"kind": "none", "directory": str(self.directory.data / "machines")}
        await self._start_kubevirt(infra, machines=machines, durations=durations)
        await management.create_machines(infra, VMS)
        await management.wait_for_machines(infra, VMS)
        self.recorder.step("the VirtualMachines run")

    async def _granted(self, infra: ControlPlane, kubectl: Path) -> list[Object]:
        """The driver's account in the management cluster; returns what was rendered for it."""
        objects = await manifests.render(manifests.INFRA, kubectl=kubectl)
        await infra.answering.wait()
        await management.create_namespace(infra)
        await management.grant_controller(infra, objects)
        return objects

    async def _tenant_half(self, workload: ControlPlane, kubectl: Path, durations: Mapping[str, float]) -> None:
        objects = await manifests.render(manifests.TENANT, kubectl=kubectl)
        await workload.answering.wait()
        await tenant.install_driver(workload, objects)
        registered = asyncio.Event()
        self.group.create_task(
            pretend(
                workload.admin_kubeconfig,
                vms=VMS,
                namespace=management.NAMESPACE,
                driver=tenant.DRIVER_NAME,
                durations=Durations(**durations).scaled(),
                ready=registered,
            )
        )
        await registered.wait()
        self.recorder.step("tenant Nodes are registered")
