"""How CDI turns a DataVolume's spec into the spec of its claim, by storage class and StorageProfile.

Source: CDI pkg/controller/datavolume. The surprising fact: a storage class that does not exist is no failure; with
access modes given the claim is made and stays pending for ever.
"""

from __future__ import annotations

import copy

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.configuration import overhead
from e2e.lab.kubevirt.offers import default_class, provisioner_of, waits_for_consumer
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.resources import CSI_DRIVER, STORAGE_PROFILE, Object, annotations_of, dig
from e2e.lab.kubevirt.scheduling import SELECTED_NODE
from e2e.lab.kubevirt.sizes import claim_bytes

MINIMUM_SIZE = "cdi.kubevirt.io/minimumSupportedPvcSize"
USE_POPULATOR = "cdi.kubevirt.io/storage.usePopulator"
IMMEDIATE = "cdi.kubevirt.io/storage.bind.immediate.requested"


class ClaimNotValidError(Exception):
    """No claim can be made from the spec (yet)."""


class NoProfileYetError(Exception):
    """The storage class is so new that it has no StorageProfile."""


def claim_spec(cluster: Cluster, data_volume: Object) -> Object:
    """The spec of the DataVolume's claim.

    Raises:
        ClaimNotValidError: access modes are neither given nor known.
        NoProfileYetError: see there.
    """
    spec = copy.deepcopy(data_volume["spec"])
    storage: Object = spec.get("pvc") or spec["storage"]
    class_name = storage.get("storageClassName") or default_class(cluster)
    if class_name is not None:
        storage["storageClassName"] = class_name
    if "pvc" not in spec:
        _complete_modes(cluster, storage)
        _complete_size(cluster, storage)
    return storage


def _complete_modes(cluster: Cluster, storage: Object) -> None:
    """Takes access modes and volume mode from the first of the profile's sets that agrees with what is given."""
    class_name = storage.get("storageClassName")
    modes, volume_mode = storage.get("accessModes"), storage.get("volumeMode")
    if class_name is None or provisioner_of(cluster, class_name) is None:
        if not modes:
            raise ClaimNotValidError("PVC spec is missing accessMode and no storageClass to choose profile")
        return
    known_modes = _profile(cluster, class_name).get("status")
    if known_modes is None:
        raise NoProfileYetError
    for known in known_modes.get("claimPropertySets", []):
        if modes and not set(modes) <= set(known["accessModes"]):
            continue
        if volume_mode and volume_mode != known["volumeMode"]:
            continue
        storage.setdefault("accessModes", known["accessModes"])
        storage.setdefault("volumeMode", known["volumeMode"])
        return
    if not modes:
        raise ClaimNotValidError(f"no accessMode specified in StorageProfile {class_name}")


def _complete_size(cluster: Cluster, storage: Object) -> None:
    """A file system gets room for itself, and no claim is smaller than the class supports."""
    asked = dig(storage, "resources", "requests", "storage")
    if asked is None:
        return
    class_name = storage.get("storageClassName")
    if storage.get("volumeMode", "Filesystem") == "Filesystem":
        asked = str(claim_bytes(bytes_of(asked), overhead(cluster, class_name)))
    minimum = annotations_of(_profile(cluster, class_name)).get(MINIMUM_SIZE)
    if minimum and bytes_of(asked) < bytes_of(minimum):
        asked = minimum
    storage["resources"]["requests"]["storage"] = asked


def _profile(cluster: Cluster, class_name: str | None) -> Object:
    return cluster.get(STORAGE_PROFILE, ("", class_name or "")) or {"metadata": {}}


def uses_populator(cluster: Cluster, data_volume: Object, class_name: str | None) -> bool:
    """Whether the class's provisioner is a CSI driver; the DataVolume's annotation overrules."""
    overruled = annotations_of(data_volume).get(USE_POPULATOR)
    if overruled in ("true", "false"):
        return overruled == "true"
    provisioner = provisioner_of(cluster, class_name) if class_name else None
    return provisioner is not None and cluster.get(CSI_DRIVER, ("", provisioner)) is not None


def lacks_consumer(cluster: Cluster, claim: Object) -> bool:
    """Whether CDI leaves the claim alone until a pod that uses it has been given a node."""
    marks = annotations_of(claim)
    if dig(claim, "status", "phase") == "Bound" or IMMEDIATE in marks or SELECTED_NODE in marks:
        return False
    return waits_for_consumer(cluster, claim["spec"].get("storageClassName"))
