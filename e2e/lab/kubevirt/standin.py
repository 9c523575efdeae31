"""The stand-in's composition root: caches, server, controllers, and which change concerns which controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from e2e.lab.kubevirt.attachments import Attachments
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.claims import StorageProfiles
from e2e.lab.kubevirt.connection import connect
from e2e.lab.kubevirt.datavolumes import DataVolumes
from e2e.lab.kubevirt.handler import Handler
from e2e.lab.kubevirt.installation import install_kinds, install_services
from e2e.lab.kubevirt.instances import Instances
from e2e.lab.kubevirt.node import Node
from e2e.lab.kubevirt.reconciling import Reconciler
from e2e.lab.kubevirt.resources import (
    CLAIM,
    CSI_DRIVER,
    DATA_VOLUME,
    POD,
    STORAGE_CLASS,
    STORAGE_PROFILE,
    VM,
    VMI,
    VOLUME,
    Key,
    Object,
    Resource,
    controller_of,
    key_of,
)
from e2e.lab.kubevirt.serving import serve
from e2e.lab.kubevirt.settings import Settings
from e2e.lab.kubevirt.storage import Provisioner
from e2e.lab.kubevirt.vms import VirtualMachines
from e2e.lab.machines import Machines

WATCHED = (VM, VMI, DATA_VOLUME, STORAGE_PROFILE, POD, CLAIM, VOLUME, STORAGE_CLASS, CSI_DRIVER)

log = structlog.get_logger()


async def run(settings: Settings, machines: Machines) -> None:
    """Installs what is missing, then serves and reconciles until it is cancelled."""
    async with connect(settings.kubeconfig) as connection:
        await install_kinds(connection)
        cluster = Cluster(connection, WATCHED)
        node = Node(cluster, settings.node, settings.durations)
        controllers = _controllers(cluster, settings, machines, node)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cluster.run())
            await cluster.synced()
            async with serve(cluster, settings.serving):
                await install_services(connection, settings.serving)
                await node.register()
                tasks.create_task(node.live())
                for controller in controllers:
                    tasks.create_task(controller.run())
                log.info("ready", port=settings.serving.port, node=settings.node)
                await asyncio.Event().wait()


def _controllers(cluster: Cluster, settings: Settings, machines: Machines, node: Node) -> list[Reconciler]:
    """Every controller, wired to the changes that it must see."""
    durations = settings.durations
    provisioner = Provisioner(cluster, settings.storage, durations)
    vms = Reconciler("vm", VirtualMachines(cluster).reconcile)
    instances = Reconciler("vmi", Instances(cluster, Attachments(cluster, durations)).reconcile)
    handling = Handler(cluster, machines, storage=settings.storage, durations=durations)
    handler = Reconciler("handler", handling.reconcile)
    volumes = Reconciler("datavolume", DataVolumes(cluster).reconcile)
    claims = Reconciler("claim", provisioner.reconcile_claim)
    released = Reconciler("volume", provisioner.reconcile_volume)
    profiles = Reconciler("storageprofile", StorageProfiles(cluster).reconcile)
    pods = Reconciler("pod", node.reconcile)

    def wire(resource: Resource, controller: Reconciler, keys: Callable[[Object], Iterable[Key]]) -> None:
        def listener(obj: Object) -> None:
            for key in keys(obj):
                controller.add(key)

        cluster.caches[resource].listen(listener)

    def itself(obj: Object) -> Iterable[Key]:
        return (key_of(obj),)

    def neighbours(obj: Object) -> Iterable[Key]:
        """All VMIs of the namespace: pods and claims do not say which of them they are for."""
        return [key_of(instance) for instance in cluster.find(VMI, key_of(obj)[0])]

    def importing(pod: Object) -> Iterable[Key]:
        """The DataVolume whose claim the importer pod populates."""
        owner = controller_of(pod)
        return ((key_of(pod)[0], owner["name"]),) if owner is not None and owner["kind"] == CLAIM.kind else ()

    for resource, controller, keys in (
        (VM, vms, itself),
        (VMI, vms, itself),
        (VMI, instances, itself),
        (VMI, handler, itself),
        (POD, instances, neighbours),
        (CLAIM, instances, neighbours),
        (DATA_VOLUME, instances, neighbours),
        (DATA_VOLUME, volumes, itself),
        (CLAIM, volumes, itself),
        (POD, volumes, importing),
        (CLAIM, claims, itself),
        (VOLUME, released, itself),
        (STORAGE_CLASS, profiles, itself),
        (POD, pods, itself),
    ):
        wire(resource, controller, keys)
    return [vms, instances, handler, volumes, claims, released, profiles, pods]
