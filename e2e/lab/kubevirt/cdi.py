"""The controllers of CDI and of the storage behind it, and which change concerns which of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.configuration import CONFIG_KEY, Configuration
from e2e.lab.kubevirt.datavolumes import DataVolumes
from e2e.lab.kubevirt.importer import Importer
from e2e.lab.kubevirt.importing import Imports
from e2e.lab.kubevirt.profiles import StorageProfiles
from e2e.lab.kubevirt.reconciling import Reconciler
from e2e.lab.kubevirt.resizing import Resizer
from e2e.lab.kubevirt.resources import (
    CDI,
    CDI_CONFIG,
    CLAIM,
    CSI_DRIVER,
    DATA_VOLUME,
    IMPORT_SOURCE,
    POD,
    STORAGE_CLASS,
    STORAGE_PROFILE,
    VOLUME,
    Key,
    Object,
    Resource,
    controller_of,
    dig,
    key_of,
)
from e2e.lab.kubevirt.scheduling import claim_keys
from e2e.lab.kubevirt.settings import Settings
from e2e.lab.kubevirt.storage import Provisioner

WATCHED = (
    DATA_VOLUME,
    IMPORT_SOURCE,
    STORAGE_PROFILE,
    CDI,
    CDI_CONFIG,
    POD,
    CLAIM,
    VOLUME,
    STORAGE_CLASS,
    CSI_DRIVER,
)
Keys = Callable[[Object], Iterable[Key]]
Wire = Callable[[Resource, Reconciler, Keys], None]


def controllers(cluster: Cluster, settings: Settings, wire: Wire) -> list[Reconciler]:
    """Every controller; ``wire`` has it reconcile those keys whenever an object of the resource changes."""
    durations = settings.durations
    provisioner = Provisioner(cluster, settings.storage, durations, node=settings.nodes[0])
    volumes = Reconciler("datavolume", DataVolumes(cluster, durations).reconcile)
    imports = Reconciler("import", Imports(cluster, durations).reconcile)
    importer = Reconciler("importer", Importer(cluster, settings.storage, durations).reconcile)
    profiles = Reconciler("storageprofile", StorageProfiles(cluster).reconcile)
    configuration = Reconciler("cdiconfig", Configuration(cluster).reconcile)
    claims = Reconciler("claim", provisioner.reconcile_claim)
    released = Reconciler("volume", provisioner.reconcile_volume)
    resizer = Reconciler("resizer", Resizer(cluster, settings.storage, durations).reconcile)

    def owner_claim(obj: Object) -> Iterable[Key]:
        """The claim that a populator's claim, or an importer pod, works for."""
        owner = controller_of(obj)
        if owner is None or owner["kind"] != CLAIM.kind:
            return ()
        key = (key_of(obj)[0], owner["name"])
        return (key, *with_owner(key))

    def with_owner(key: Key) -> Iterable[Key]:
        claim = cluster.get(CLAIM, key)
        return (key, *(owner_claim(claim) if claim is not None else ()))

    def worked_for(obj: Object) -> Iterable[Key]:
        return (key_of(obj), *owner_claim(obj))

    def claim_of(volume: Object) -> Iterable[Key]:
        reference = dig(volume, "spec", "claimRef")
        return with_owner((reference["namespace"], reference["name"])) if reference else ()

    for resource, controller, keys in (
        (DATA_VOLUME, volumes, _itself),
        (CLAIM, volumes, _itself),
        (CLAIM, imports, worked_for),
        (POD, imports, owner_claim),
        (VOLUME, imports, claim_of),
        (POD, importer, _itself),
        (STORAGE_CLASS, profiles, _itself),
        (STORAGE_PROFILE, profiles, _itself),
        (STORAGE_CLASS, configuration, _the_config),
        (CDI, configuration, _the_config),
        (CDI_CONFIG, configuration, _the_config),
        (CLAIM, claims, _itself),
        (VOLUME, released, _itself),
        (CLAIM, resizer, _itself),
        (VOLUME, resizer, claim_of),
        (POD, resizer, claim_keys),
    ):
        wire(resource, controller, keys)
    return [volumes, imports, importer, profiles, configuration, claims, released, resizer]


def _itself(obj: Object) -> Iterable[Key]:
    return (key_of(obj),)


def _the_config(_: Object) -> Iterable[Key]:
    return (CONFIG_KEY,)
