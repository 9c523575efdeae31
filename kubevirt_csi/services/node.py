"""The CSI Node service: checks a request in the order of the specification, and hands it to the operations.

Source of the checks and codes: CSI spec, Node Service RPCs.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.access import Capability, require_supported
from kubevirt_csi.domain.volumes import PublishContext
from kubevirt_csi.errors import FailedPrecondition, InvalidArgument
from kubevirt_csi.operations.publishing import Publication, Publishing
from kubevirt_csi.operations.staging import Staging, Volume
from kubevirt_csi.operations.usage import VolumeUsage
from kubevirt_csi.ports.host import FileSystemUsage
from kubevirt_csi.services import wire

LONGEST_ID_BYTES = 128
"""CSI spec: string fields have at most 128 bytes."""

_Rpc = csi.NodeServiceCapabilityRpcType
CAPABILITIES = (_Rpc.STAGE_UNSTAGE_VOLUME, _Rpc.GET_VOLUME_STATS, _Rpc.SINGLE_NODE_MULTI_WRITER)

_Unit = csi.VolumeUsageUnit


class NodeService(csi.NodeBase):
    """Implements csi.v1.Node.

    Args:
        node_id: ``namespace/vm``.
        topology: labels of this node, empty when topology is off.
    """

    def __init__(
        self, *, node_id: str, topology: Mapping[str, str], staging: Staging, publishing: Publishing, usage: VolumeUsage
    ) -> None:
        self._node_id = node_id
        self._topology = topology
        self._staging = staging
        self._publishing = publishing
        self._usage = usage

    async def node_stage_volume(self, message: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        """Makes the volume usable on this node."""
        _require_id(message.volume_id)
        staging_path = _path(message.staging_target_path, field="staging_target_path")
        await self._staging.stage(
            Volume(
                volume_id=message.volume_id,
                staging_path=staging_path,
                capability=_capability(message.volume_capability),
                context=PublishContext.from_map(message.publish_context, message.volume_context),
            )
        )
        return csi.NodeStageVolumeResponse()

    async def node_unstage_volume(self, message: csi.NodeUnstageVolumeRequest) -> csi.NodeUnstageVolumeResponse:
        """Unmounts the volume, and proves that nothing uses its disk any more."""
        _require_id(message.volume_id)
        staging_path = _path(message.staging_target_path, field="staging_target_path")
        await self._staging.unstage(volume_id=message.volume_id, staging_path=staging_path)
        return csi.NodeUnstageVolumeResponse()

    async def node_publish_volume(self, message: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        """Shows the volume at a pod's target path."""
        _require_id(message.volume_id)
        target_path = _path(message.target_path, field="target_path")
        capability = _capability(message.volume_capability)
        if not message.staging_target_path:
            raise FailedPrecondition(
                "staging_target_path is missing: this driver stages volumes before publishing them"
            )
        volume = Volume(
            volume_id=message.volume_id,
            staging_path=_path(message.staging_target_path, field="staging_target_path"),
            capability=capability,
            context=PublishContext.from_map(message.publish_context, message.volume_context),
        )
        await self._publishing.publish(Publication(volume=volume, target_path=target_path, read_only=message.readonly))
        return csi.NodePublishVolumeResponse()

    async def node_unpublish_volume(self, message: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        """Takes the volume away from a target path, and the path too."""
        _require_id(message.volume_id)
        target_path = _path(message.target_path, field="target_path")
        await self._publishing.unpublish(volume_id=message.volume_id, target_path=target_path)
        return csi.NodeUnpublishVolumeResponse()

    async def node_get_volume_stats(self, message: csi.NodeGetVolumeStatsRequest) -> csi.NodeGetVolumeStatsResponse:
        """How full the volume is. A path that is not absolute is one where no volume can be: NotFound."""
        _require_id(message.volume_id)
        if not message.volume_path:
            raise InvalidArgument("volume_path is missing")
        found = await self._usage.at(message.volume_path)
        return csi.NodeGetVolumeStatsResponse(usage=_usage(found))

    async def node_get_capabilities(self, message: csi.NodeGetCapabilitiesRequest) -> csi.NodeGetCapabilitiesResponse:
        """What this service can do."""
        del message
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=csi.NodeServiceCapabilityRpc(type=kind)) for kind in CAPABILITIES
            ]
        )

    async def node_get_info(self, message: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Which VM this node is. No volume limit is reported (0 = unknown)."""
        del message
        topology = csi.Topology(segments=dict(self._topology)) if self._topology else None
        return csi.NodeGetInfoResponse(node_id=self._node_id, accessible_topology=topology)


def _require_id(volume_id: str) -> None:
    if not volume_id:
        raise InvalidArgument("volume_id is missing")
    if len(volume_id.encode()) > LONGEST_ID_BYTES:
        raise InvalidArgument(f"volume_id is longer than {LONGEST_ID_BYTES} bytes")


def _path(path: str, *, field: str) -> str:
    if not path:
        raise InvalidArgument(f"{field} is missing")
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"{field} {path!r} is not an absolute path")
    return path


def _capability(message: csi.VolumeCapability | None) -> Capability:
    capability = wire.capability(message)
    require_supported((capability,))
    return capability


def _usage(found: FileSystemUsage | int) -> list[csi.VolumeUsage]:
    if isinstance(found, int):
        return [csi.VolumeUsage(unit=_Unit.BYTES, total=found)]
    return [
        csi.VolumeUsage(
            unit=_Unit.BYTES, total=found.total_bytes, available=found.available_bytes, used=found.used_bytes
        ),
        csi.VolumeUsage(
            unit=_Unit.INODES, total=found.total_inodes, available=found.available_inodes, used=found.used_inodes
        ),
    ]
