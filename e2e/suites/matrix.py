"""The rows of the matrix: which volumes are made, and the objects that each row needs.

Every value of every property is in some row, not every combination: what matters of a combination (a bus with a file
system, a tenant class with an infra class) is crossed so that each value meets several of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from e2e.walk import DRIVER, Surroundings, pod_with_volume

Object = dict[str, Any]

LABEL = "matrix=yes"
LABELS = {"matrix": "yes"}
MEBIBYTES = 8
SMALL, LARGE = "1Gi", "2Gi"
DEVICE = "/dev/volume"
FOLDER = "/volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One volume: how it is made and how pods see it. ``file_system`` "" is a raw block volume."""

    bus: str
    file_system: str
    binding: str = "WaitForFirstConsumer"
    infra_class: str = "local-block"
    reclaim: str = "Delete"
    access: str = "ReadWriteOnce"
    suffix: str = ""
    ephemeral: bool = False

    @property
    def name(self) -> str:
        """A name for its objects, and for the test."""
        return f"{self.bus}-{self.file_system or 'block'}{self.suffix}"

    @property
    def target(self) -> str:
        """What the pod reads and writes."""
        return f"{FOLDER}/data" if self.file_system else DEVICE


ROWS = (
    Row(bus="scsi", file_system="ext4"),
    Row(
        bus="scsi",
        file_system="xfs",
        binding="Immediate",
        infra_class="local-block-wffc",
        reclaim="Retain",
        access="ReadWriteOncePod",
    ),
    Row(bus="scsi", file_system="", infra_class="local-filesystem"),
    Row(bus="virtio", file_system="ext4", binding="Immediate", access="ReadWriteOncePod"),
    Row(bus="virtio", file_system="xfs", infra_class="local-block-wffc"),
    Row(bus="virtio", file_system="", binding="Immediate", reclaim="Retain"),
)
EPHEMERAL = Row(bus="scsi", file_system="ext4", suffix="-ephemeral", ephemeral=True)
REFUSED = Row(bus="scsi", file_system="ext4", suffix="-refused", binding="Immediate", infra_class="local-legacy")
"""Its infra class lets no claim grow; no pod has it."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a pod sees of its volume: bytes, and the digest of what was written at first."""

    size: int
    digest: str


def look_in(text: str) -> Look | None:
    """What the pod printed by ``look_script``, None when it has not yet."""
    words = next((line.split() for line in text.splitlines() if line.startswith("look ")), [])
    return Look(int(float(words[1])), words[2]) if len(words) == 3 else None


def storage_class(row: Row) -> Object:
    """The tenant's class of the row."""
    parameters = {"bus": row.bus, "infraStorageClassName": row.infra_class}
    if row.file_system:
        parameters["csi.storage.k8s.io/fstype"] = row.file_system
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _object_name(row), "labels": LABELS},
        "provisioner": DRIVER,
        "volumeBindingMode": row.binding,
        "reclaimPolicy": row.reclaim,
        "allowVolumeExpansion": True,
        "parameters": parameters,
    }


def claim(row: Row, where: Surroundings) -> Object:
    """The claim of the row, of the small size."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": _object_name(row), "namespace": where.namespace, "labels": LABELS},
        "spec": _claim_spec(row),
    }


def writer(row: Row, where: Surroundings, *, node: str) -> Object:
    """A pod that writes random bytes and looks at its volume."""
    write = f"dd if=/dev/urandom of={row.target} bs=1M count={MEBIBYTES} && sync"
    return _pod(row, where, name=writer_name(row), node=node, script=f"{write} && {look_script(row)}")


def reader(row: Row, where: Surroundings, *, node: str) -> Object:
    """A pod that looks at its volume."""
    return _pod(row, where, name=reader_name(row), node=node, script=look_script(row))


def writer_name(row: Row) -> str:
    """The pod that writes."""
    return f"{_object_name(row)}-writer"


def reader_name(row: Row) -> str:
    """The pod that reads on the other node."""
    return f"{_object_name(row)}-reader"


def claim_name(row: Row) -> str:
    """The claim's name; that of a generic ephemeral volume is made by Kubernetes from pod and volume."""
    return f"{writer_name(row)}-volume" if row.ephemeral else _object_name(row)


def look_script(row: Row) -> str:
    """Prints a line that a ``Look`` is read from."""
    size = (
        f"$(df -P -k {FOLDER} | awk 'END {{print $2 * 1024}}')"
        if row.file_system
        else f"$(blockdev --getsize64 {DEVICE})"
    )
    digest = f"$(dd if={row.target} bs=1M count={MEBIBYTES} 2>/dev/null | sha256sum | cut -d' ' -f1)"
    return f'echo "look {size} {digest}"'


def _object_name(row: Row) -> str:
    return f"matrix-{row.name}"


def _claim_spec(row: Row) -> Object:
    return {
        "accessModes": [row.access],
        "volumeMode": "Filesystem" if row.file_system else "Block",
        "storageClassName": _object_name(row),
        "resources": {"requests": {"storage": SMALL}},
    }


def _pod(row: Row, where: Surroundings, *, name: str, node: str, script: str) -> Object:
    seen_as = (
        {"volumeMounts": [{"name": "volume", "mountPath": FOLDER}]}
        if row.file_system
        else {"volumeDevices": [{"name": "volume", "devicePath": DEVICE}]}
    )
    source: Object = (
        {"ephemeral": {"volumeClaimTemplate": {"spec": _claim_spec(row)}}}
        if row.ephemeral
        else {"persistentVolumeClaim": {"claimName": _object_name(row)}}
    )
    made = pod_with_volume(
        where, name=name, node=node, script=script, source={"name": "volume", **source}, seen_as=seen_as
    )
    made["metadata"]["labels"] = LABELS
    return made
