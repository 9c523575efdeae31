"""A VolumeAttachment's life as kube-controller-manager would begin and end it, worked off by the real csi-attacher."""

from __future__ import annotations

from collections.abc import Mapping

from bench.driver import SIZE_BYTES
from bench.moments import Moments, states
from e2e.lab.kubevirt.connection import Connection
from e2e.lab.kubevirt.resources import VOLUME, Resource, dig
from e2e.lab.tenant import DRIVER_NAME

ATTACHMENT = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False)
ATTACHED, GONE = "attached", "gone"


class Attachments(Moments):
    """VolumeAttachments of the tenant cluster, each named after its volume, and when they were seen how."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    async def run(self) -> None:
        """Watches until cancelled."""
        async for kind, item in states(self._connection, ATTACHMENT.collection()):
            name = item["metadata"]["name"]
            if kind == "DELETED":
                self.note(name, GONE)
            elif dig(item, "status", "attached"):
                self.note(name, ATTACHED)

    async def have_volume(self, name: str, context: Mapping[str, str]) -> None:
        """A PersistentVolume for a volume that exists already."""
        source = {"driver": DRIVER_NAME, "volumeHandle": name, "fsType": "ext4", "volumeAttributes": dict(context)}
        spec = {
            "capacity": {"storage": str(SIZE_BYTES)},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": source,
        }
        await self._create(VOLUME, {"metadata": {"name": name}, "spec": spec})

    async def attach(self, name: str, node: str) -> None:
        """Asks for the attachment of the volume to the Node."""
        spec = {"attacher": DRIVER_NAME, "nodeName": node, "source": {"persistentVolumeName": name}}
        await self._create(ATTACHMENT, {"metadata": {"name": name}, "spec": spec})

    async def detach(self, name: str) -> None:
        """Asks for the end of the attachment."""
        await self._connection.request("DELETE", ATTACHMENT.path(("", name)))

    async def drop_volume(self, name: str) -> None:
        """Deletes the PersistentVolume, the volume stays."""
        await self._connection.request("DELETE", VOLUME.path(("", name)))

    async def _create(self, resource: Resource, body: Mapping[str, object]) -> None:
        complete = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        await self._connection.request("POST", resource.collection(), body=complete)
