"""Composition root of the node role: builds the adapters to this worker's operating system and serves CSI to kubelet.

It needs no API server and no credentials: which VM this node is was found out by the init container and lies in a file.
Nothing here may import kubernetes_asyncio or aiohttp, which would more than double the memory of a process that runs on
every node.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

import structlog

from kubevirt_csi.domain.nodes import NodeIdentity
from kubevirt_csi.host import filesystems, mounts, resizing, trimming
from kubevirt_csi.host.commands import Commands
from kubevirt_csi.host.disks import SysfsDisks
from kubevirt_csi.host.filesystems import HostFilesystems
from kubevirt_csi.host.hotplug import SysfsHotplug
from kubevirt_csi.host.mounts import HostMounts
from kubevirt_csi.host.places import HostPlaces
from kubevirt_csi.host.records import HostRecords
from kubevirt_csi.host.resizing import HostResizing
from kubevirt_csi.host.trimming import HostTrimmer
from kubevirt_csi.host.usage import HostUsage
from kubevirt_csi.observe.health import Pages, Readiness
from kubevirt_csi.observe.http_threaded import HttpServer
from kubevirt_csi.observe.metrics import AbnormalVolumes, Metrics
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.node import NodeOperations
from kubevirt_csi.operations.trimming import Trimming
from kubevirt_csi.ports.host import Host
from kubevirt_csi.rpc.serving import RpcServer, csi_services, termination
from kubevirt_csi.services import registration
from kubevirt_csi.services.identity import IdentityService
from kubevirt_csi.services.node import NodeService
from kubevirt_csi.services.registration import KubeletRegistration
from kubevirt_csi.settings import NodeSettings

log = structlog.get_logger(__name__)

PROGRAMS = (*filesystems.PROGRAMS, *mounts.PROGRAMS, *resizing.PROGRAMS, *trimming.PROGRAMS)
TOOLS = "tools"
UNREGISTER_SECONDS = 1.0


async def run(settings: NodeSettings) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code.

    At the end kubelet is told first that the driver goes, then running calls get the grace period. A mkfs that runs
    keeps the process alive until it has ended.
    """
    with termination() as terminated:
        return await _serve(settings, terminated)


async def _serve(settings: NodeSettings, terminated: asyncio.Event) -> int:
    identity = _identity(settings)
    if identity is None:
        return 1
    metrics = Metrics(role="node")
    readiness = Readiness((TOOLS, registration.CONDITION))
    commands = Commands(search_path=os.environ.get("PATH", os.defpath))
    _check_tools(commands, readiness)
    health = VolumeHealth()
    metrics.registry.register(AbnormalVolumes(lambda: [(volume, why.value) for volume, why in health.abnormal()]))
    host = await worker(
        commands, sysfs_root=settings.sysfs_root, dev_root=settings.dev_root, state_dir=settings.state_dir
    )
    operations = NodeOperations(host, health=health, max_disks=settings.max_disks)
    service = NodeService(node_id=identity.node_id, topology=identity.topology, operations=operations)
    server = RpcServer(
        endpoint=settings.endpoint,
        services=csi_services(identity=IdentityService(ready=lambda: readiness.ready), node=service),
        metrics=metrics.rpc,
    )
    kubelet = KubeletRegistration(
        plugins_registry=settings.plugins_registry,
        csi_socket=settings.csi_socket,
        readiness=readiness,
        metrics=metrics.rpc,
    )
    http = HttpServer(address=settings.http_address, pages=Pages(readiness, metrics.registry))
    settings.endpoint.path.parent.mkdir(parents=True, exist_ok=True)
    await http.start()
    try:
        await server.start()
        await kubelet.start()
        await until_terminated(terminated, background=background(settings, operations.trimming))
    finally:
        await kubelet.stop(grace_seconds=UNREGISTER_SECONDS)
        await server.stop(grace_seconds=settings.grace_period_seconds)
        await http.stop()
    return 0


def background(settings: NodeSettings, trims: Trimming) -> list[Coroutine[Any, Any, NoReturn]]:
    """What runs beside the calls, for as long as the process does."""
    if settings.fstrim_interval_seconds is None:
        return []
    return [trims.run(interval_seconds=settings.fstrim_interval_seconds)]


async def until_terminated(terminated: asyncio.Event, *, background: Sequence[Coroutine[Any, Any, NoReturn]]) -> None:
    """Waits for the end. A background task that dies before it ends the process, with its error."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in background]
        await terminated.wait()
        for task in tasks:
            task.cancel()


def _identity(settings: NodeSettings) -> NodeIdentity | None:
    if settings.node_id is not None:
        return NodeIdentity(node_id=settings.node_id)
    try:
        return NodeIdentity.from_json(settings.node_id_file.read_text())
    except (OSError, ValueError) as error:
        log.error(  # noqa: TRY400 - the text says it all
            "node id unknown",
            file=str(settings.node_id_file),
            error=str(error),
            advice="run `kubevirt-csi node-id` first, as the DaemonSet's init container does, or set --node-id",
        )
        return None


def _check_tools(commands: Commands, readiness: Readiness) -> None:
    missing = commands.missing(*PROGRAMS)
    if missing:
        log.error("programs are missing in the node plugin's image", programs=missing)
        readiness.set(TOOLS, ready=False, reason=f"missing in the image: {', '.join(missing)}")
    else:
        readiness.set(TOOLS, ready=True, reason="all found")


async def worker(commands: Commands, *, sysfs_root: Path, dev_root: Path, state_dir: Path) -> Host:
    """The adapters to this worker's operating system."""
    places = HostPlaces()
    host_mounts = HostMounts(commands, places=places, workspace=state_dir / "mounts")
    await host_mounts.open()
    return Host(
        disks=SysfsDisks(sysfs_root=sysfs_root, dev_root=dev_root),
        hotplug=SysfsHotplug(sysfs_root=sysfs_root),
        filesystems=HostFilesystems(commands),
        resizing=HostResizing(commands, sysfs_root=sysfs_root),
        trimmer=HostTrimmer(commands),
        mounts=host_mounts,
        places=places,
        usage=HostUsage(sysfs_root=sysfs_root, dev_root=dev_root),
        records=HostRecords(state_dir / "volumes"),
    )
