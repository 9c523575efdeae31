"""What stands behind a volume of a VMI: its claim, its DataVolume, and the faults that were ordered for it.

A claim is found by name alone, so a volume whose DataVolume has been collected is no special case. Source: KubeVirt
pkg/storage/types (VolumeReadyToUse) and pkg/virt-controller/watch/vmi/storage.go.
"""

from __future__ import annotations

from typing import Literal

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.configuration import overhead_text
from e2e.lab.kubevirt.disks import claim_name
from e2e.lab.kubevirt.faults import Faults, faults_of
from e2e.lab.kubevirt.gates import KUBEVIRT_KEY
from e2e.lab.kubevirt.resources import (
    CLAIM,
    DATA_VOLUME,
    KUBEVIRT,
    VM,
    Object,
    annotations_of,
    controller_of,
    dig,
    key_of,
)

SELECTED_NODE = "volume.kubernetes.io/selected-node"
READY_DATA_VOLUME = ("Succeeded", "PendingPopulation")
PREALLOCATED = "cdi.kubevirt.io/storage.preallocation"

Readiness = Literal["ready", "waiting", "wants consumer"]


class ClaimMissingError(Exception):
    """A claim of the VMI's spec does not exist."""


class Backing:
    """Looks up what is behind the volumes of VMIs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def claim(self, instance: Object, volume: Object) -> Object | None:
        """The volume's claim; None when it does not exist, or the volume is of a kind that has none."""
        name = claim_name(volume)
        return self._cluster.get(CLAIM, (key_of(instance)[0], name)) if name else None

    def is_block(self, instance: Object, volume: Object) -> bool:
        return bool(dig(self.claim(instance, volume), "spec", "volumeMode") == "Block")

    def readiness(self, instance: Object, volume: Object) -> Readiness:
        """Whether the claim may be attached: it exists, and the DataVolume that made it, if any, is done.

        Raises:
            ClaimMissingError: see there.
        """
        claim = self.claim(instance, volume)
        if claim is None:
            raise ClaimMissingError(f"Error determining volume status didn't find PVC {claim_name(volume)}")
        if self.faults(instance, volume).stuck_attach == "Bound":
            return "waiting"
        owner = controller_of(claim)
        if owner is None or owner["kind"] != DATA_VOLUME.kind:
            return "ready"
        data_volume = self._cluster.get(DATA_VOLUME, (key_of(instance)[0], owner["name"]))
        phase = dig(data_volume, "status", "phase")
        if data_volume is None or phase in READY_DATA_VOLUME or _waits_with_its_pod(claim):
            return "ready"
        return "wants consumer" if phase == "WaitForFirstConsumer" else "waiting"

    def info(self, instance: Object, volume: Object) -> Object | None:
        """The volume's ``persistentVolumeClaimInfo``; None without a claim."""
        claim = self.claim(instance, volume)
        if claim is None:
            return None
        spec = claim["spec"]
        block = spec.get("volumeMode") == "Block"
        info = {
            "claimName": claim["metadata"]["name"],
            "accessModes": spec["accessModes"],
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "capacity": dig(claim, "status", "capacity", default={}),
            "requests": dig(spec, "resources", "requests", default={}),
            "filesystemOverhead": "0" if block else overhead_text(self._cluster, spec.get("storageClassName")),
        }
        if annotations_of(claim).get(PREALLOCATED) == "true":
            info["preallocated"] = True
        return info

    def faults(self, instance: Object, volume: Object | None = None) -> Faults:
        """The faults ordered for the volume, or, without one, for the VMI."""
        key = key_of(instance)
        name = claim_name(volume) if volume is not None else None
        special = [self._cluster.get(kind, (key[0], name)) for kind in (CLAIM, DATA_VOLUME)] if name else []
        return faults_of(*special, instance, self._cluster.get(VM, key), self._cluster.get(KUBEVIRT, KUBEVIRT_KEY))


def _waits_with_its_pod(claim: Object) -> bool:
    """Whether the claim is populated where its attachment pod, the first consumer, will run: the pod waits for that."""
    return SELECTED_NODE in annotations_of(claim) and dig(claim, "spec", "dataSourceRef") is not None
