"""Which calls change a volume, and what makes two of them the same.

A table instead of declarations in the services: a service stays a plain class, and the rule is seen in one place. A
call that is not listed here only reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Path of the method -> the request's field that names the volume. The volume of a CreateVolume is its name: a CSI name
# that is safe for Kubernetes becomes the volume id, so a create and a delete of the same volume meet.
VOLUME_FIELDS = {
    "/csi.v1.Controller/CreateVolume": "name",
    "/csi.v1.Controller/DeleteVolume": "volume_id",
    "/csi.v1.Controller/ControllerPublishVolume": "volume_id",
    "/csi.v1.Controller/ControllerUnpublishVolume": "volume_id",
    "/csi.v1.Controller/ControllerExpandVolume": "volume_id",
    "/csi.v1.Node/NodeStageVolume": "volume_id",
    "/csi.v1.Node/NodeUnstageVolume": "volume_id",
    "/csi.v1.Node/NodePublishVolume": "volume_id",
    "/csi.v1.Node/NodeUnpublishVolume": "volume_id",
    "/csi.v1.Node/NodeExpandVolume": "volume_id",
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One call that changes a volume. Equal mutations are the same work: node, paths and all else are in the request.

    Requests are compared as messages, not by a digest of their bytes: Go writes the entries of a map in another order
    each time.
    """

    method: str
    volume: str
    request: Any

    def __str__(self) -> str:
        """The method's short name and the node, if it has one; never the request, which may hold secrets."""
        node = getattr(self.request, "node_id", "")
        return self.method.rpartition("/")[2] + (f" for node {node}" if node else "")


def mutation_of(method: str, request: Any) -> Mutation | None:
    """The mutation that the request asks for; None when it only reads, or names no volume and will be refused."""
    field = VOLUME_FIELDS.get(method)
    volume = getattr(request, field) if field is not None else ""
    return Mutation(method=method, volume=volume, request=request) if volume else None
