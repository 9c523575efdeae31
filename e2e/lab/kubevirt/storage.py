"""The infra storage behind the classes of ``offers``: sparse raw files, one for each PersistentVolume.

Plays the CSI provisioners for kube-controller-manager, which binds, protects and releases claims for real. A Block
volume is a raw file; a Filesystem volume is a directory, empty until somebody (CDI's importer) makes ``disk.img`` in
it. The class parameter ``capacity`` limits all volumes of a class together; other parameters are refused.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Literal

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.disks import claim_name
from e2e.lab.kubevirt.offers import LEGACY, PROVISIONERS
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.reconciling import Pauses, Stopwatch
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
from e2e.lab.kubevirt.scheduling import SELECTED_NODE
from e2e.lab.kubevirt.settings import Durations

STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
IMAGE_NAME = "disk.img"
CAPACITY = "capacity"


class VolumeRefusedError(Exception):
    """The storage does not make or grow a volume; the text begins with the gRPC code, as a CSI driver's would."""


class Provisioner:
    """Makes a volume for each claim of the classes, and removes released volumes with their files."""

    def __init__(self, cluster: Cluster, directory: Path, durations: Durations, *, node: str) -> None:
        self._cluster = cluster
        self._directory = directory
        self._durations = durations
        self._node = node
        self._steps = Stopwatch()
        self._pauses = Pauses(durations.retry)
        self._recorders = {name: Recorder(cluster, name) for name in PROVISIONERS}
        self._pool = asyncio.Lock()

    async def reconcile_claim(self, key: Key) -> float | None:
        """Provisions for the claim if it is one of these provisioners' to do."""
        claim = self._cluster.get(CLAIM, key)
        if claim is None or deleting(claim) or not _waits_for_us(claim):
            return None
        left = self._steps.left(self._durations.provisioned, uid_of(claim))
        if left:
            return left
        try:
            await self._provision(claim)
        except VolumeRefusedError as error:
            class_name = claim["spec"]["storageClassName"]
            message = f'failed to provision volume with StorageClass "{class_name}": rpc error: {error}'
            await self._tell(claim, "ProvisioningFailed", message, failed=True)
            return self._pauses.longer(uid_of(claim))
        self._steps.forget(uid_of(claim))
        self._pauses.forget(uid_of(claim))
        return None

    async def _provision(self, claim: Object) -> None:
        name = f"pvc-{uid_of(claim)}"
        async with self._pool:
            if self._cluster.get(VOLUME, ("", name)) is not None:
                return
            check_room(self._cluster, claim["spec"]["storageClassName"], new=_requested(claim))
            await asyncio.to_thread(_make, self._directory / name, _mode(claim), _requested(claim))
            await self._cluster.create(VOLUME, self._volume(name, claim))
        await self._tell(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {name}")

    async def _tell(self, claim: Object, reason: str, message: str, *, failed: bool = False) -> None:
        recorder = self._recorders[annotations_of(claim)[STORAGE_PROVISIONER]]
        kind: Literal["Normal", "Warning"] = "Warning" if failed else "Normal"
        await recorder.record(CLAIM, claim, reason=reason, message=message, kind=kind)

    async def reconcile_volume(self, key: Key) -> float | None:
        """Removes a released volume: first the file, then the object, so that a crash between leaves no file."""
        volume = self._cluster.get(VOLUME, key)
        if volume is None or provisioned_by(volume) not in PROVISIONERS or deleting(volume):
            return None
        released = dig(volume, "status", "phase") == "Released"
        if released and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            await asyncio.to_thread(_remove, self._directory / key[1])
            await self._cluster.delete(VOLUME, volume)
        return None

    def _volume(self, name: str, claim: Object) -> Object:
        spec, metadata = claim["spec"], claim["metadata"]
        provisioner = annotations_of(claim)[STORAGE_PROVISIONER]
        node = annotations_of(claim).get(SELECTED_NODE, self._node)
        found = self._cluster.get(STORAGE_CLASS, ("", spec["storageClassName"])) or {}
        return {
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: provisioner}},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "volumeMode": _mode(claim),
                "storageClassName": spec["storageClassName"],
                "persistentVolumeReclaimPolicy": found.get("reclaimPolicy", "Delete"),
                "claimRef": claim_reference(metadata),
                **(self._local(name, node) if provisioner == LEGACY else {"csi": _csi(provisioner, name)}),
            },
        }

    def _local(self, name: str, node: str) -> Object:
        hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}}
        return {"local": {"path": str(self._directory / name)}, "nodeAffinity": terms}


def _csi(provisioner: str, name: str) -> Object:
    return {"driver": provisioner, "volumeHandle": name}


def claim_reference(metadata: Object) -> Object:
    """The reference by which a PersistentVolume belongs to the claim with this metadata."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def provisioned_by(volume: Object) -> str | None:
    """The provisioner that made the PersistentVolume."""
    return annotations_of(volume).get(PROVISIONED_BY)


def check_room(cluster: Cluster, class_name: str, *, new: int, old: int = 0) -> None:
    """Checks that a volume of ``old`` bytes (0: none yet) may become one of ``new`` bytes.

    Raises:
        VolumeRefusedError: the class's parameters are wrong, or its capacity does not allow it.
    """
    parameters = dig(cluster.get(STORAGE_CLASS, ("", class_name)), "parameters", default={})
    for parameter in parameters:
        if parameter != CAPACITY and not parameter.startswith("csi.storage.k8s.io/"):
            raise VolumeRefusedError(f'code = InvalidArgument desc = unknown parameter "{parameter}"')
    if CAPACITY not in parameters:
        return
    capacity = bytes_of(parameters[CAPACITY])
    if old and new > capacity:
        raise VolumeRefusedError(f"code = OutOfRange desc = {new} bytes are more than the pool's {capacity}")
    used = sum(_size(volume) for volume in cluster.find(VOLUME) if volume["spec"].get("storageClassName") == class_name)
    if used - old + new > capacity:
        free = capacity - used + old
        raise VolumeRefusedError(f"code = ResourceExhausted desc = no space in pool: {free} bytes free, {new} asked")


def image_path(directory: Path, volume: Object) -> Path:
    """The raw image in a PersistentVolume; a Filesystem volume may have none yet."""
    path = directory / str(volume["metadata"]["name"])
    return path / IMAGE_NAME if _mode(volume) == "Filesystem" else path.with_name(f"{path.name}.raw")


def image_of(cluster: Cluster, directory: Path, namespace: str, volume: Object) -> Path | None:
    """The raw image behind a VM's volume; None while its claim is not bound.

    A Filesystem claim that CDI has not populated has no file at this path.
    """
    claim = cluster.get(CLAIM, (namespace, claim_name(volume) or ""))
    bound = volume_of(cluster, claim) if claim is not None else None
    return image_path(directory, bound) if bound is not None else None


def volume_of(cluster: Cluster, claim: Object) -> Object | None:
    """The PersistentVolume that the claim is bound to."""
    name = dig(claim, "spec", "volumeName")
    return cluster.get(VOLUME, ("", name)) if name else None


def make_image(path: Path, size: int) -> None:
    """A sparse file of the size; one that is there already keeps its content. Blocks: use it in a thread."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        os.truncate(file.fileno(), size)


def _make(path: Path, mode: str, size: int) -> None:
    if mode == "Filesystem":
        path.mkdir(parents=True, exist_ok=True)
    else:
        make_image(path.with_name(f"{path.name}.raw"), size)


def _remove(path: Path) -> None:
    path.with_name(f"{path.name}.raw").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _waits_for_us(claim: Object) -> bool:
    """As external-provisioner judges: a claim with a data source that is not the driver's is its populator's."""
    ours = annotations_of(claim).get(STORAGE_PROVISIONER) in PROVISIONERS
    return ours and not claim["spec"].get("volumeName") and not claim["spec"].get("dataSourceRef")


def _mode(obj: Object) -> str:
    mode: str = obj["spec"].get("volumeMode", "Filesystem")
    return mode


def _size(volume: Object) -> int:
    return bytes_of(volume["spec"]["capacity"]["storage"])


def _requested(claim: Object) -> int:
    return bytes_of(claim["spec"]["resources"]["requests"]["storage"])
