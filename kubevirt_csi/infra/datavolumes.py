"""DataVolume and claim objects to values, and new DataVolumes to objects. No I/O.

Reading refuses with ValueError what it cannot understand, instead of guessing: an unreadable attachments annotation may
be a held disk. Writing leaves access modes out for volumes of a single node, so that CDI's StorageProfile chooses the
best that the class has (ReadWriteMany block first, which keeps the tenant's VMs migratable).
Source: CDI pkg/apis/core/v1beta1/types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from kubevirt_csi.domain import attachments, infra_volumes
from kubevirt_csi.domain.infra_volumes import Claim, Condition, DataVolume, InfraVolume, NewVolume
from kubevirt_csi.domain.quantities import format_quantity, parse_quantity
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.infra.resources import Object

KEEP_AFTER_COMPLETION = {"cdi.kubevirt.io/storage.deleteAfterCompletion": "false"}
"""CDI before 1.62 deletes DataVolumes that are done unless told otherwise."""

Value = TypeVar("Value", DataVolume, Claim)


@dataclass(frozen=True, slots=True)
class Half(Generic[Value]):
    """One of a volume's two objects, with its labels and this driver's annotations."""

    value: Value
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def data_volume(found: Object) -> Half[DataVolume]:
    """Reads a DataVolume.

    Raises:
        ValueError: a quantity in it is none.
    """
    spec, status = _map(found, "spec"), _map(found, "status")
    claim = _map(spec, "storage") or _map(spec, "pvc")
    value = DataVolume(
        uid=str(_map(found, "metadata").get("uid", "")),
        phase=str(status.get("phase") or ""),
        conditions=tuple(_condition(entry) for entry in status.get("conditions") or ()),
        size_bytes=_requested(claim),
        of_disk=bool(spec.get("storage")),
        deleting=_deleting(found),
    )
    return _half(found, value)


def claim(found: Object) -> Half[Claim]:
    """Reads a PersistentVolumeClaim.

    Raises:
        ValueError: a quantity in it is none.
    """
    spec, status, metadata = _map(found, "spec"), _map(found, "status"), _map(found, "metadata")
    capacity, allocated = (_map(status, key).get("storage") for key in ("capacity", "allocatedResources"))
    value = Claim(
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        phase=str(status.get("phase") or ""),
        size_bytes=_requested(spec),
        capacity_bytes=None if capacity is None else parse_quantity(capacity),
        volume_mode=str(spec.get("volumeMode") or "Filesystem"),
        storage_class=str(spec.get("storageClassName") or ""),
        allocated_bytes=None if allocated is None else parse_quantity(allocated),
        resize_state=str(_map(status, "allocatedResourceStatuses").get("storage") or ""),
        conditions=tuple(_condition(entry) for entry in status.get("conditions") or ()),
        annotations=_ours(metadata) if metadata.get("annotations") else None,
        deleting=_deleting(found),
    )
    return _half(found, value)


def join(volume_id: str, dv: Half[DataVolume] | None, pvc: Half[Claim] | None) -> InfraVolume | None:
    """The volume of two halves, None of none. The claim's annotations win.

    Raises:
        ValueError: an annotation is not what this driver writes.
    """
    if dv is None and pvc is None:
        return None
    annotations = {**(dv.annotations if dv else {}), **(pvc.annotations if pvc else {})}
    bus = annotations.get(infra_volumes.BUS)
    # A disk without a serial could be any disk, so there is always one: the predecessor's, or that of a bare claim.
    uids = [half.value.uid for half in (dv, pvc) if half is not None]
    return InfraVolume(
        id=volume_id,
        data_volume=dv.value if dv else None,
        claim=pvc.value if pvc else None,
        serial=annotations.get(infra_volumes.SERIAL) or uids[0],
        bus=Bus(bus) if bus else None,
        content=Content(annotations.get(infra_volumes.CONTENT) or Content.USED),
        attachments=attachments.decode(annotations.get(infra_volumes.ATTACHMENTS)),
        name=annotations.get(infra_volumes.NAME),
        digest=annotations.get(infra_volumes.DIGEST),
        override=annotations.get(infra_volumes.FORMAT_OVERRIDE) or None,
        override_in_force=annotations.get(infra_volumes.OVERRIDE_IN_FORCE) or None,
        mkfs_options=annotations.get(infra_volumes.MKFS_OPTIONS, ""),
        promised_bytes=int(annotations.get(infra_volumes.SIZE) or 0),
    )


def overhead(found: Object, storage_class: str) -> Fraction | None:
    """The overhead that a CDIConfig has for a class; None where it tells none that is a share of a whole."""
    told = _map(_map(found, "status"), "filesystemOverhead")
    try:
        share = Fraction(str(_map(told, "storageClass").get(storage_class) or told.get("global")))
    except ValueError:
        return None
    return share if 0 <= share < 1 else None


def half_of(volume: InfraVolume) -> Half[DataVolume] | None:
    """The DataVolume's half of a volume that was joined before, with the annotations that never change."""
    if volume.data_volume is None:
        return None
    annotations = {
        infra_volumes.SERIAL: volume.serial,
        infra_volumes.BUS: volume.bus.value if volume.bus else "",
        infra_volumes.NAME: volume.name or "",
        infra_volumes.DIGEST: volume.digest or "",
        infra_volumes.MKFS_OPTIONS: volume.mkfs_options,
    }
    return Half(volume.data_volume, {}, {key: text for key, text in annotations.items() if text})


def new(volume: NewVolume, labels: Mapping[str, str]) -> Object:
    """The DataVolume to create, blank, with the tenant's labels; CDI copies labels and annotations to the claim."""
    storage: Object = {"resources": {"requests": {"storage": format_quantity(volume.size_bytes)}}}
    if volume.read_write_many:
        storage |= {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}
    if volume.storage_class:
        storage["storageClassName"] = volume.storage_class
    annotations = {
        infra_volumes.SERIAL: volume.serial,
        infra_volumes.BUS: volume.bus.value,
        infra_volumes.CONTENT: volume.content.value,
        infra_volumes.NAME: volume.name,
        infra_volumes.DIGEST: volume.digest,
    }
    if volume.mkfs_options:
        annotations[infra_volumes.MKFS_OPTIONS] = volume.mkfs_options
    return {
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {
            "name": volume.id,
            "labels": dict(labels),
            "annotations": annotations | KEEP_AFTER_COMPLETION,
        },
        "spec": {"source": {"blank": {}}, "storage": storage},
    }


def _half(found: Object, value: Value) -> Half[Value]:
    metadata = _map(found, "metadata")
    return Half(value, {key: str(text) for key, text in _map(metadata, "labels").items()}, _ours(metadata))


def _ours(metadata: Object) -> dict[str, str]:
    annotations = _map(metadata, "annotations")
    return {key: str(text) for key, text in annotations.items() if key.startswith(infra_volumes.PREFIX)}


def _map(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under the key, empty when it is missing or null."""
    return found.get(key) or {}


def _requested(claim_spec: Mapping[str, Any]) -> int:
    """Requested bytes, 0 where none are (a DataVolume of a clone may leave the size out)."""
    requested = _map(_map(claim_spec, "resources"), "requests").get("storage")
    return 0 if requested is None else parse_quantity(requested)


def _deleting(found: Object) -> bool:
    return bool(_map(found, "metadata").get("deletionTimestamp"))


def _condition(entry: Mapping[str, Any]) -> Condition:
    return Condition(
        type=str(entry.get("type", "")),
        status=str(entry.get("status", "")),
        reason=str(entry.get("reason") or ""),
        message=str(entry.get("message") or ""),
    )
