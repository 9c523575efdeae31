"""The infra storage: class ``local-block``, whose volumes are sparse raw files named after their PersistentVolume.

Plays a CSI provisioner for kube-controller-manager, which binds, protects and releases claims for real. A claim whose
``dataSourceRef`` is CDI's VolumeImportSource waits for its importer, as a populated claim does.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.disks import claim_name
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.reconciling import Stopwatch
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import (
    CLAIM,
    STORAGE_CLASS,
    VOLUME,
    Key,
    Object,
    annotations_of,
    deleting,
    dig,
    uid_of,
)
from e2e.lab.kubevirt.settings import Durations

PROVISIONER = "block.csi.lab.example.com"
CLASS_NAME = "local-block"
ACCESS_MODES = ("ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany")
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
POPULATED_BY = "VolumeImportSource"
POD_PHASE = "cdi.kubevirt.io/storage.pod.phase"


def storage_class() -> Object:
    """The default class of the management cluster."""
    return {
        "metadata": {
            "name": CLASS_NAME,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def csi_driver() -> Object:
    """Makes CDI use populators, and spares kube-controller-manager VolumeAttachments that nobody would work off."""
    return {"metadata": {"name": PROVISIONER}, "spec": {"attachRequired": False, "podInfoOnMount": False}}


class Provisioner:
    """Makes a volume for each claim of the class, and removes released volumes with their files."""

    def __init__(self, cluster: Cluster, directory: Path, durations: Durations) -> None:
        self._cluster = cluster
        self._directory = directory
        self._durations = durations
        self._recorder = Recorder(cluster, PROVISIONER)
        self._steps = Stopwatch()

    async def reconcile_claim(self, key: Key) -> float | None:
        """Provisions for the claim if it is this provisioner's to do."""
        claim = self._cluster.get(CLAIM, key)
        if claim is None or deleting(claim) or not _waits_for_us(claim):
            return None
        if dig(claim, "spec", "volumeMode") != "Block":
            await self._recorder.record(
                CLAIM,
                claim,
                reason="ProvisioningFailed",
                message="failed to provision volume: only volumeMode Block is supported",
                kind="Warning",
            )
            return None
        left = self._steps.left(self._durations.provisioned, uid_of(claim))
        if left:
            return left
        name = f"pvc-{uid_of(claim)}"
        size = bytes_of(claim["spec"]["resources"]["requests"]["storage"])
        await asyncio.to_thread(_make_file, image_path(self._directory, name), size)
        if self._cluster.get(VOLUME, ("", name)) is None:
            await self._cluster.create(VOLUME, self._volume(name, claim))
        self._steps.forget(uid_of(claim))
        return None

    async def reconcile_volume(self, key: Key) -> float | None:
        """Removes a released volume: first the file, then the object, so that a crash between leaves no file."""
        volume = self._cluster.get(VOLUME, key)
        if volume is None or annotations_of(volume).get(PROVISIONED_BY) != PROVISIONER:
            return None
        released = dig(volume, "status", "phase") == "Released"
        if released and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" and not deleting(volume):
            path = image_path(self._directory, key[1])
            await asyncio.to_thread(path.unlink, missing_ok=True)
            await self._cluster.delete(VOLUME, volume)
        return None

    def _volume(self, name: str, claim: Object) -> Object:
        spec, metadata = claim["spec"], claim["metadata"]
        return {
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "volumeMode": "Block",
                "storageClassName": spec["storageClassName"],
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
                "csi": {"driver": PROVISIONER, "volumeHandle": name},
            },
        }


def _waits_for_us(claim: Object) -> bool:
    annotations = annotations_of(claim)
    if annotations.get(STORAGE_PROVISIONER) != PROVISIONER or claim["spec"].get("volumeName"):
        return False
    populated = dig(claim, "spec", "dataSourceRef", "kind") == POPULATED_BY
    return not populated or annotations.get(POD_PHASE) == "Succeeded"


def image_path(directory: Path, volume_name: str) -> Path:
    """The raw image of a PersistentVolume."""
    return directory / f"{volume_name}.raw"


def _make_file(path: Path, size: int) -> None:
    """A sparse file of the size; one that is there already keeps its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        os.truncate(file.fileno(), size)


def provisioner_of(cluster: Cluster, class_name: str) -> str | None:
    """Who provisions for the class; None when there is no such class."""
    found = cluster.get(STORAGE_CLASS, ("", class_name))
    return None if found is None else found["provisioner"]


def image_of(cluster: Cluster, directory: Path, namespace: str, volume: Object) -> Path | None:
    """The raw image behind a VM's volume; None while its claim is not bound."""
    claim = cluster.get(CLAIM, (namespace, claim_name(volume) or ""))
    name = dig(claim, "spec", "volumeName")
    return image_path(directory, name) if name else None
