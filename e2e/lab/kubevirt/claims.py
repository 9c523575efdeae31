"""How CDI turns a DataVolume's spec into the spec of its claim, by storage class and StorageProfile.

Source: CDI pkg/controller/datavolume and pkg/controller/storageprofile-controller.go. The surprising fact: a storage
class that does not exist is no failure; with access modes given the claim is made and stays pending for ever.
"""

from __future__ import annotations

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.resources import (
    CSI_DRIVER,
    STORAGE_CLASS,
    STORAGE_PROFILE,
    Key,
    Object,
    annotations_of,
    dig,
)
from e2e.lab.kubevirt.storage import PROVISIONER, provisioner_of

DEFAULTS = ("storageclass.kubevirt.io/is-default-virt-class", "storageclass.kubernetes.io/is-default-class")
MINIMUM_SIZE = "cdi.kubevirt.io/minimumSupportedPvcSize"
USE_POPULATOR = "cdi.kubevirt.io/storage.usePopulator"
BLOCK_SETS = [{"accessModes": [mode], "volumeMode": "Block"} for mode in ("ReadWriteMany", "ReadWriteOnce")]


class ClaimNotValidError(Exception):
    """No claim can be made from the spec (yet)."""


class StorageProfiles:
    """Gives each storage class its StorageProfile; of classes that are not ours nothing is known."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def reconcile(self, key: Key) -> None:
        """Applies the profile of one storage class."""
        storage_class = self._cluster.get(STORAGE_CLASS, key)
        if storage_class is None:
            return
        body: Object = {"metadata": {"name": key[1]}}
        status = {"storageClass": key[1], "provisioner": storage_class["provisioner"]}
        if storage_class["provisioner"] == PROVISIONER:
            status["claimPropertySets"] = BLOCK_SETS
        await self._cluster.apply(STORAGE_PROFILE, {**body, "spec": {}})
        await self._cluster.apply(STORAGE_PROFILE, {**body, "status": status}, subresource="/status")


def claim_spec(cluster: Cluster, data_volume: Object) -> Object:
    """The spec of the DataVolume's claim.

    Raises:
        ClaimNotValidError: access modes are neither given nor known.
    """
    spec = data_volume["spec"]
    if spec.get("pvc"):
        return dict(spec["pvc"])
    storage = dict(spec["storage"])
    class_name = storage.get("storageClassName") or default_class(cluster)
    if class_name is None or provisioner_of(cluster, class_name) is None:
        if not storage.get("accessModes"):
            raise ClaimNotValidError("PVC spec is missing accessMode and no storageClass to choose profile")
        return storage
    storage["storageClassName"] = class_name
    profile = cluster.get(STORAGE_PROFILE, ("", class_name)) or {"metadata": {"name": class_name}}
    _complete_modes(storage, profile)
    _raise_to_minimum(storage, profile)
    return storage


def _complete_modes(storage: Object, profile: Object) -> None:
    """Takes access modes and volume mode from the first of the profile's sets that agrees with what is given."""
    sets = dig(profile, "status", "claimPropertySets", default=[])
    modes, volume_mode = storage.get("accessModes"), storage.get("volumeMode")
    for known in sets:
        if modes and not set(modes) <= set(known["accessModes"]):
            continue
        if volume_mode and volume_mode != known["volumeMode"]:
            continue
        storage.setdefault("accessModes", known["accessModes"])
        storage.setdefault("volumeMode", known["volumeMode"])
        return
    if not modes:
        raise ClaimNotValidError(f"no accessMode specified in StorageProfile {profile['metadata']['name']}")


def _raise_to_minimum(storage: Object, profile: Object) -> None:
    minimum = annotations_of(profile).get(MINIMUM_SIZE)
    asked = dig(storage, "resources", "requests", "storage")
    if minimum and asked and bytes_of(asked) < bytes_of(minimum):
        storage["resources"] = {"requests": {"storage": minimum}}


def default_class(cluster: Cluster) -> str | None:
    """The default class for virtual machines, else the default one, else None."""
    for annotation in DEFAULTS:
        for storage_class in cluster.find(STORAGE_CLASS):
            if annotations_of(storage_class).get(annotation) == "true":
                name: str = storage_class["metadata"]["name"]
                return name
    return None


def uses_populator(cluster: Cluster, data_volume: Object, class_name: str | None) -> bool:
    """Whether the class's provisioner is a CSI driver; the DataVolume's annotation overrules."""
    overruled = annotations_of(data_volume).get(USE_POPULATOR)
    if overruled in ("true", "false"):
        return overruled == "true"
    provisioner = provisioner_of(cluster, class_name) if class_name else None
    return provisioner is not None and cluster.get(CSI_DRIVER, ("", provisioner)) is not None
