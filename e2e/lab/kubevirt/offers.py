"""What storage the management cluster offers: the storage classes and the drivers behind them.

All of it is one store of raw files (``storage``). ``local-legacy`` belongs to a provisioner without a CSIDriver object,
so CDI uses no populator for it. The CSIDrivers say that nothing has to be attached, which spares
kube-controller-manager VolumeAttachments that nobody would work off.
"""

from __future__ import annotations

from collections.abc import Iterator

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.resources import STORAGE_CLASS, Object, annotations_of, dig

BLOCK = "block.csi.lab.example.com"
FILESYSTEM = "filesystem.csi.lab.example.com"
LEGACY = "legacy.lab.example.com"
PROVISIONERS = (BLOCK, FILESYSTEM, LEGACY)
DRIVERS = (BLOCK, FILESYSTEM)
VIRT_DEFAULT = "storageclass.kubevirt.io/is-default-virt-class"
DEFAULT = "storageclass.kubernetes.io/is-default-class"
FIRST_CONSUMER = "WaitForFirstConsumer"


def storage_classes() -> Iterator[Object]:
    """The storage classes of the management cluster; ``local-block`` is the default."""
    default = _storage_class("local-block", BLOCK)
    default["metadata"]["annotations"] = {DEFAULT: "true"}
    yield default
    yield _storage_class("local-block-wffc", BLOCK) | {"volumeBindingMode": FIRST_CONSUMER}
    yield _storage_class("local-filesystem", FILESYSTEM)
    yield _storage_class("local-legacy", LEGACY) | {"allowVolumeExpansion": False}


def _storage_class(name: str, provisioner: str) -> Object:
    return {
        "metadata": {"name": name},
        "provisioner": provisioner,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": True,
    }


def csi_drivers() -> Iterator[Object]:
    """The CSIDriver objects."""
    for name in DRIVERS:
        yield {"metadata": {"name": name}, "spec": {"attachRequired": False, "podInfoOnMount": False}}


def default_class(cluster: Cluster) -> str | None:
    """The default class for virtual machines, else the default one, else None."""
    for annotation in (VIRT_DEFAULT, DEFAULT):
        for storage_class in cluster.find(STORAGE_CLASS):
            if annotations_of(storage_class).get(annotation) == "true":
                name: str = storage_class["metadata"]["name"]
                return name
    return None


def provisioner_of(cluster: Cluster, class_name: str) -> str | None:
    """Who provisions for the class; None when there is no such class."""
    found = cluster.get(STORAGE_CLASS, ("", class_name))
    return None if found is None else found["provisioner"]


def waits_for_consumer(cluster: Cluster, class_name: str | None) -> bool:
    """Whether volumes of the class are made only when a pod that uses them has been given a node."""
    found = cluster.get(STORAGE_CLASS, ("", class_name or ""))
    return bool(dig(found, "volumeBindingMode") == FIRST_CONSUMER)
