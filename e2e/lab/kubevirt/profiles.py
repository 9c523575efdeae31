"""StorageProfiles: which access modes and volume modes CDI knows to work with a storage class, the best first.

Source: CDI pkg/controller/storageprofile-controller.go. CDI has a table by provisioner; an administrator overrules it
in the profile's spec. Of a provisioner that is not in the table nothing is known, and that is no error here.
"""

from __future__ import annotations

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.offers import BLOCK, FILESYSTEM, LEGACY
from e2e.lab.kubevirt.resources import STORAGE_CLASS, STORAGE_PROFILE, Key, Object, dig


def _sets(*pairs: tuple[str, str]) -> list[Object]:
    return [{"accessModes": [access], "volumeMode": mode} for access, mode in pairs]


CAPABILITIES = {
    BLOCK: _sets(("ReadWriteMany", "Block"), ("ReadWriteOnce", "Block"), ("ReadWriteOnce", "Filesystem")),
    FILESYSTEM: _sets(("ReadWriteMany", "Filesystem"), ("ReadWriteOnce", "Filesystem")),
    LEGACY: _sets(("ReadWriteOnce", "Block"), ("ReadWriteOnce", "Filesystem")),
}


class StorageProfiles:
    """Gives each storage class its StorageProfile, and takes it away with the class."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def reconcile(self, key: Key) -> None:
        """Applies the profile of one storage class."""
        storage_class = self._cluster.get(STORAGE_CLASS, key)
        profile = self._cluster.get(STORAGE_PROFILE, key)
        if storage_class is None:
            if profile is not None:
                await self._cluster.delete(STORAGE_PROFILE, profile)
            return
        if profile is None:
            profile = await self._cluster.apply(STORAGE_PROFILE, {"metadata": {"name": key[1]}, "spec": {}})
        provisioner = storage_class["provisioner"]
        status = {"storageClass": key[1], "provisioner": provisioner}
        known = dig(profile, "spec", "claimPropertySets") or CAPABILITIES.get(provisioner)
        if known:
            status["claimPropertySets"] = known
        body = {"metadata": {"name": key[1]}, "status": status}
        await self._cluster.apply(STORAGE_PROFILE, body, subresource="/status")
