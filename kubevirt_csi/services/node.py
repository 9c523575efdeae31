"""The CSI Node service: checks a request in the order of the specification, and hands it to the operations.

Source of the checks and codes: CSI spec, Node Service RPCs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.access import Capability, unsupported
from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.health import Ailment
from kubevirt_csi.domain.volumes import PublishContext
from kubevirt_csi.errors import FailedPrecondition, InvalidArgument
from kubevirt_csi.operations.growing import Expansion
from kubevirt_csi.operations.node import NodeOperations
from kubevirt_csi.operations.publishing import Publication
from kubevirt_csi.operations.staging import Volume
from kubevirt_csi.ports.host import FileSystemUsage
from kubevirt_csi.services import wire

CUT = "..."

_Rpc = csi.NodeServiceCapabilityRpcType
CAPABILITIES = (
    _Rpc.STAGE_UNSTAGE_VOLUME,
    _Rpc.EXPAND_VOLUME,
    _Rpc.GET_VOLUME_STATS,
    _Rpc.SINGLE_NODE_MULTI_WRITER,
    _Rpc.VOLUME_CONDITION,
    _Rpc.GET_VOLUME_HEALTH,
)
"""VOLUME_CONDITION is the old number, which kubelets before CSI 1.13 know; GET_VOLUME_HEALTH has replaced it."""

_Unit = csi.VolumeUsageUnit
NORMAL = "nothing is known to be wrong with the volume"


class NodeService(csi.NodeBase):
    """Implements csi.v1.Node.

    Args:
        node_id: ``namespace/vm``.
        topology: labels of this node, empty when topology is off.
        operations: what is done.
    """

    def __init__(self, *, node_id: str, topology: Mapping[str, str], operations: NodeOperations) -> None:
        self._node_id = node_id
        self._topology = topology
        self._operations = operations

    async def node_stage_volume(self, message: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        """Makes the volume usable on this node."""
        _require_id(message.volume_id)
        wire.require_small_maps(message)
        staging_path = _path(message.staging_target_path, field="staging_target_path")
        volume = Volume(
            volume_id=message.volume_id,
            staging_path=staging_path,
            capability=_capability(message.volume_capability),
            context=PublishContext.from_map(message.publish_context, message.volume_context),
        )
        with self._operations.health.staging(volume.volume_id):
            await self._operations.staging.stage(volume)
        return csi.NodeStageVolumeResponse()

    async def node_unstage_volume(self, message: csi.NodeUnstageVolumeRequest) -> csi.NodeUnstageVolumeResponse:
        """Unmounts the volume, and proves that nothing uses its disk any more."""
        _require_id(message.volume_id)
        staging_path = _path(message.staging_target_path, field="staging_target_path")
        await self._operations.unstaging.unstage(volume_id=message.volume_id, staging_path=staging_path)
        self._operations.health.forget(message.volume_id)
        return csi.NodeUnstageVolumeResponse()

    async def node_publish_volume(self, message: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        """Shows the volume at a pod's target path."""
        _require_id(message.volume_id)
        wire.require_small_maps(message)
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
        publication = Publication(volume=volume, target_path=target_path, read_only=message.readonly)
        await self._operations.publishing.publish(publication)
        return csi.NodePublishVolumeResponse()

    async def node_unpublish_volume(self, message: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        """Takes the volume away from a target path, and the path too."""
        _require_id(message.volume_id)
        target_path = _path(message.target_path, field="target_path")
        await self._operations.publishing.unpublish(volume_id=message.volume_id, target_path=target_path)
        return csi.NodeUnpublishVolumeResponse()

    async def node_expand_volume(self, message: csi.NodeExpandVolumeRequest) -> csi.NodeExpandVolumeResponse:
        """Grows the volume on this node. Path and kernel tell what it is; the capability may be missing."""
        _require_id(message.volume_id)
        wire.require_small_maps(message)
        path = _volume_path(message.volume_path)
        if message.volume_capability is not None:
            wire.capability(message.volume_capability)
        limits = message.capacity_range or csi.CapacityRange()
        capacity = CapacityRange(required=limits.required_bytes, limit=limits.limit_bytes)
        expansion = Expansion(volume_id=message.volume_id, path=path, capacity=capacity)
        return csi.NodeExpandVolumeResponse(capacity_bytes=await self._operations.growing.expand(expansion))

    async def node_get_volume_stats(self, message: csi.NodeGetVolumeStatsRequest) -> csi.NodeGetVolumeStatsResponse:
        """How full the volume is, and what is wrong with it, in one bit and a text, for kubelets before CSI 1.13.

        A path that is not absolute is one where no volume can be: NotFound.
        """
        _require_id(message.volume_id)
        found = await self._operations.usage.at(_volume_path(message.volume_path), volume_id=message.volume_id)
        return csi.NodeGetVolumeStatsResponse(usage=_usage(found.figures), volume_condition=_condition(found.ailments))

    async def node_get_volume_health(self, message: csi.NodeGetVolumeHealthRequest) -> csi.NodeGetVolumeHealthResponse:
        """All that is wrong with a volume that is here, or that could not be staged here."""
        _require_id(message.volume_id)
        paths = {
            "volume_publish_path": message.volume_publish_path,
            "staging_target_path": message.staging_target_path,
        }
        ailments = await self._operations.usage.ailments(
            message.volume_id, paths=[_path(path, field=field) for field, path in paths.items() if path]
        )
        return csi.NodeGetVolumeHealthResponse(
            volume_health=csi.VolumeHealth(volume_id=message.volume_id, health_statuses=[_entry(a) for a in ailments])
        )

    async def node_get_capabilities(self, message: csi.NodeGetCapabilitiesRequest) -> csi.NodeGetCapabilitiesResponse:
        """What this service can do."""
        del message
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=csi.NodeServiceCapabilityRpc(type=kind)) for kind in CAPABILITIES
            ]
        )

    async def node_get_info(self, message: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Which VM this node is, and how many volumes it can have."""
        del message
        topology = csi.Topology(segments=dict(self._topology)) if self._topology else None
        return csi.NodeGetInfoResponse(
            node_id=self._node_id,
            max_volumes_per_node=await self._operations.limit.volumes(),
            accessible_topology=topology,
        )


def _require_id(volume_id: str) -> None:
    if not volume_id:
        raise InvalidArgument("volume_id is missing")
    wire.require_short("volume_id", volume_id)


def _path(path: str, *, field: str) -> str:
    if not path:
        raise InvalidArgument(f"{field} is missing")
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"{field} {path!r} is not an absolute path")
    return path


def _volume_path(path: str) -> str:
    """A path that is not absolute is one where no volume can be, which the operations answer."""
    if not path:
        raise InvalidArgument("volume_path is missing")
    if "\0" in path:
        raise InvalidArgument(f"volume_path {path!r} is not a path")
    return path


def _capability(message: csi.VolumeCapability | None) -> Capability:
    """What the volume is to be used as. One that the driver does not serve is FailedPrecondition on the node.

    CSI spec: NodeStageVolume and NodePublishVolume, "Exceeds capabilities".
    """
    capability = wire.capability(message)
    reason = unsupported(capability)
    if reason is not None:
        raise FailedPrecondition(reason)
    return capability


def _usage(found: FileSystemUsage | int | None) -> list[csi.VolumeUsage]:
    """CSI spec: ``usage`` is optional; a volume that does not answer has none."""
    if found is None:
        return []
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


def _condition(ailments: Sequence[Ailment]) -> csi.VolumeCondition:
    text = "; ".join(ailment.message for ailment in ailments)
    return csi.VolumeCondition(abnormal=bool(ailments), message=_shortened(text) or NORMAL)


def _entry(ailment: Ailment) -> csi.VolumeHealthVolumeHealthEntry:
    return csi.VolumeHealthVolumeHealthEntry(
        status=csi.VolumeHealthErrorType[ailment.severity.value],
        reason=ailment.reason.value,
        message=_shortened(ailment.message),
    )


def _shortened(text: str) -> str:
    """As much of the text as a field may have, also in an answer (CSI spec: Size Limits). The log has all of it."""
    encoded = text.encode()
    if len(encoded) <= wire.LONGEST_STRING_BYTES:
        return text
    return encoded[: wire.LONGEST_STRING_BYTES - len(CUT)].decode(errors="ignore") + CUT
