"""The controller role, put together: the only place that knows which adapters stand behind its ports.

Serving begins at once, also while the infra cluster is away: a call then fails as Unavailable with the reason, and
readiness tells it too. The end: calls are turned away and drained first, while the caches still follow the cluster for
those that wait on it; the pages for probes go last. A background task that dies ends the process.
"""

from __future__ import annotations

import asyncio
import secrets
import time

import structlog

from kubevirt_csi.domain.nodeids import NodeNamespace
from kubevirt_csi.infra.cluster import Infra
from kubevirt_csi.observe.health import Pages, Readiness
from kubevirt_csi.observe.http_aiohttp import HttpServer
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.operations.attachment import Attacher
from kubevirt_csi.operations.detachment import Detacher
from kubevirt_csi.operations.entries import Entries
from kubevirt_csi.operations.expansion import Expander
from kubevirt_csi.operations.holding import Holding
from kubevirt_csi.operations.pacing import Pacing
from kubevirt_csi.operations.provisioning import Provisioner
from kubevirt_csi.operations.stuck import StuckAttaches
from kubevirt_csi.ports.infra import Machines, Volumes
from kubevirt_csi.rpc.serving import RpcServer, csi_services, termination
from kubevirt_csi.services.controller import ControllerService
from kubevirt_csi.services.identity import IdentityService
from kubevirt_csi.settings import ControllerSettings

CACHES = "caches"
READINESS_SECONDS = 1.0

log = structlog.get_logger(__name__)


def controller_service(*, volumes: Volumes, machines: Machines, nodes: NodeNamespace) -> ControllerService:
    """The service and its operations on top of the two ports of the infra cluster."""
    entries = Entries(volumes=volumes, process=secrets.token_hex(8), now=time.time)
    holding = Holding(volumes=volumes, machines=machines, entries=entries, nodes=nodes)
    pacing, stuck = Pacing(machines), StuckAttaches()
    detacher = Detacher(holding=holding, pacing=pacing, stuck=stuck)
    attacher = Attacher(holding=holding, pacing=pacing, stuck=stuck, detacher=detacher)
    return ControllerService(
        provisioner=Provisioner(holding=holding),
        attacher=attacher,
        detacher=detacher,
        expander=Expander(volumes=volumes),
    )


async def run(settings: ControllerSettings) -> int:
    """Serves until SIGTERM or SIGINT, then drains; returns the exit code."""
    with termination() as terminated:
        return await _serve(settings, terminated)


async def _serve(settings: ControllerSettings, terminated: asyncio.Event) -> int:
    infra = Infra(
        kubeconfig=settings.infra_kubeconfig,
        namespace=settings.infra_namespace,
        labels=settings.infra_labels,
        vm_selector=settings.infra_vm_selector,
    )
    nodes = NodeNamespace(name=settings.infra_namespace, aliases=settings.infra_namespace_aliases)
    metrics, readiness = Metrics(role="controller"), Readiness([CACHES])
    service = controller_service(volumes=infra.volumes, machines=infra.machines, nodes=nodes)
    server = RpcServer(
        endpoint=settings.endpoint,
        services=csi_services(identity=IdentityService(ready=lambda: readiness.ready), controller=service),
        metrics=metrics.rpc,
    )
    http = HttpServer(address=settings.http_address, pages=Pages(readiness=readiness, registry=metrics.registry))
    async with infra, asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(infra.run()), tasks.create_task(_keep_ready(infra, readiness))]
        try:
            await http.start()
            await server.start()
            await terminated.wait()
        finally:
            await server.stop(grace_seconds=settings.grace_period_seconds)
            await http.stop()
            for task in background:
                task.cancel()
    return 0


async def _keep_ready(infra: Infra, readiness: Readiness) -> None:
    """Tells readiness what the caches say, as long as it is not cancelled."""
    while True:
        troubles = "; ".join(f"{title}: {reason}" for title, reason in infra.troubles.items())
        readiness.set(CACHES, ready=not troubles, reason=troubles or "synced")
        await asyncio.sleep(READINESS_SECONDS)
