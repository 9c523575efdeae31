"""CDI's configuration: what an administrator writes into the CDI object, as CDI's controllers read it.

Source: CDI pkg/operator and pkg/controller/config-controller.go. The operator copies ``spec.config`` of the CDI object
into the CDIConfig, whose status has the file system overhead of every storage class. Only that part is modelled.
"""

from __future__ import annotations

from decimal import Decimal

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.resources import CDI, CDI_CONFIG, STORAGE_CLASS, Key, Object, dig

CDI_NAME = "cdi"
CONFIG_KEY = ("", "config")
DEFAULT_OVERHEAD = "0.06"


def cdi() -> Object:
    """The CDI object as its administrator creates it."""
    return {"metadata": {"name": CDI_NAME}, "spec": {}}


class Configuration:
    """Keeps the CDIConfig up to date."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def reconcile(self, key: Key) -> None:
        """Applies the CDIConfig that follows from the CDI object and the storage classes."""
        wanted = dig(self._cluster.get(CDI, ("", CDI_NAME)), "spec", "config", default={})
        overhead = dig(wanted, "filesystemOverhead", default={})
        everywhere = overhead.get("global", DEFAULT_OVERHEAD)
        names = [storage_class["metadata"]["name"] for storage_class in self._cluster.find(STORAGE_CLASS)]
        special = overhead.get("storageClass", {})
        effective = {"global": everywhere, "storageClass": {name: special.get(name, everywhere) for name in names}}
        body: Object = {"metadata": {"name": key[1]}}
        await self._cluster.apply(CDI_CONFIG, {**body, "spec": wanted})
        status = {"filesystemOverhead": effective}
        await self._cluster.apply(CDI_CONFIG, {**body, "status": status}, subresource="/status")


def overhead_text(cluster: Cluster, class_name: str | None) -> str:
    """The file system overhead of the class, or that of all others, as the CDIConfig has it."""
    overhead = dig(cluster.get(CDI_CONFIG, CONFIG_KEY), "status", "filesystemOverhead", default={})
    text: str = dig(overhead, "storageClass", class_name or "") or overhead.get("global", DEFAULT_OVERHEAD)
    return text


def overhead(cluster: Cluster, class_name: str | None) -> Decimal:
    """The share that the file system of a claim of the class needs for itself, between 0 and 1."""
    return Decimal(overhead_text(cluster, class_name))
