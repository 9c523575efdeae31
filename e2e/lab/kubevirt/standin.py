"""The stand-in's composition root: caches, server and controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from e2e.lab.kubevirt import cdi, fault_events, virt
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import connect
from e2e.lab.kubevirt.installation import install_kinds, install_kubevirt, install_services
from e2e.lab.kubevirt.node import Nodes
from e2e.lab.kubevirt.reconciling import Reconciler
from e2e.lab.kubevirt.resources import Key, Object, Resource
from e2e.lab.kubevirt.serving import serve
from e2e.lab.kubevirt.settings import Settings
from e2e.lab.machines import Machines

WATCHED = (*virt.WATCHED, *cdi.WATCHED)

log = structlog.get_logger()


async def run(settings: Settings, machines: Machines) -> None:
    """Installs what is missing, then serves and reconciles until it is cancelled."""
    async with connect(settings.kubeconfig) as connection:
        await install_kinds(connection)
        await install_kubevirt(connection, settings.kubevirt)
        cluster = Cluster(connection, WATCHED)
        nodes = Nodes(cluster, settings.nodes, settings.durations)
        controllers = _controllers(cluster, settings, machines)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cluster.run())
            await cluster.synced()
            async with serve(cluster, settings.serving) as serving:
                await install_services(connection, serving)
                await nodes.register()
                tasks.create_task(nodes.live())
                for controller in controllers:
                    tasks.create_task(controller.run())
                log.info("ready", port=settings.serving.port, nodes=settings.nodes)
                await asyncio.Event().wait()


def _controllers(cluster: Cluster, settings: Settings, machines: Machines) -> list[Reconciler]:
    """Every controller, wired to the changes that it must see."""

    def wire(resource: Resource, controller: Reconciler, keys: Callable[[Object], Iterable[Key]]) -> None:
        def listener(obj: Object) -> None:
            for key in keys(obj):
                controller.add(key)

        cluster.caches[resource].listen(listener)

    return [
        *virt.controllers(cluster, settings, machines, wire=wire),
        *cdi.controllers(cluster, settings, wire),
        *fault_events.controllers(cluster),
    ]
