"""The Controller service: CSI messages to operations and back.

Deadlines, joining of retries, the error map and logs are the RPC layer's. Only what this file implements is advertised:
everything else answers Unimplemented by the generated base.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import structlog

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain import digests, names
from kubevirt_csi.domain.access import Capability, unsupported
from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.classes import ClassParameters
from kubevirt_csi.errors import InvalidArgument, NotFound
from kubevirt_csi.operations.provisioning import CreateRequest, mismatch, provisioned
from kubevirt_csi.services import wire

if TYPE_CHECKING:
    from kubevirt_csi.domain.infra_volumes import InfraVolume
    from kubevirt_csi.operations.attachment import Attacher
    from kubevirt_csi.operations.detachment import Detacher
    from kubevirt_csi.operations.expansion import Expander
    from kubevirt_csi.operations.provisioning import Provisioner

CAPABILITIES = (
    csi.ControllerServiceCapabilityRpcType.CREATE_DELETE_VOLUME,
    csi.ControllerServiceCapabilityRpcType.PUBLISH_UNPUBLISH_VOLUME,
    csi.ControllerServiceCapabilityRpcType.EXPAND_VOLUME,
    csi.ControllerServiceCapabilityRpcType.SINGLE_NODE_MULTI_WRITER,
)

log = structlog.get_logger(__name__)


class ControllerService(csi.ControllerBase):
    """CSI spec: Controller Service RPC."""

    def __init__(self, *, provisioner: Provisioner, attacher: Attacher, detacher: Detacher, expander: Expander) -> None:
        self._provisioner = provisioner
        self._attacher = attacher
        self._detacher = detacher
        self._expander = expander

    async def create_volume(self, message: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        """Makes a blank volume, or finds the one that an earlier call made."""
        if not message.name:
            raise InvalidArgument("name is empty: a volume needs a name")
        wire.require_small_maps(message)
        limits = message.capacity_range or csi.CapacityRange()
        request = CreateRequest(
            name=message.name,
            capabilities=[wire.capability(capability) for capability in message.volume_capabilities],
            capacity=CapacityRange(required=limits.required_bytes, limit=limits.limit_bytes),
            parameters=message.parameters,
        )
        if message.mutable_parameters:
            raise InvalidArgument("mutable_parameters are not supported: this driver does not advertise MODIFY_VOLUME")
        if message.volume_content_source is not None:
            raise InvalidArgument("volume_content_source: snapshots and clones are not supported by this driver")
        if message.accessibility_requirements is not None:
            raise InvalidArgument("accessibility_requirements: this driver does not advertise topology")
        made = await self._provisioner.create(request)
        return csi.CreateVolumeResponse(
            volume=csi.Volume(
                volume_id=made.volume_id,
                capacity_bytes=made.capacity_bytes,
                volume_context=dict(made.volume_context),
            )
        )

    async def delete_volume(self, message: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        """Deletes the volume; one that does not exist is deleted."""
        _require_volume_id(message.volume_id)
        wire.require_small_maps(message)
        if _could_exist(message.volume_id):
            await self._provisioner.delete(message.volume_id)
        return csi.DeleteVolumeResponse()

    async def controller_publish_volume(
        self, message: csi.ControllerPublishVolumeRequest
    ) -> csi.ControllerPublishVolumeResponse:
        """Attaches the volume to the node's VM.

        A caller must not ask for read-only, because PUBLISH_READONLY is not advertised; the attacher never does then.
        """
        _require_volume_id(message.volume_id)
        if not message.node_id:
            raise InvalidArgument("node_id is empty")
        wire.require_small_maps(message)
        capability = wire.capability(message.volume_capability)
        if message.readonly:
            raise InvalidArgument("readonly is not supported: this driver does not advertise PUBLISH_READONLY")
        _require_possible(message.volume_id)
        context = await self._attacher.publish(message.volume_id, message.node_id, capability)
        return csi.ControllerPublishVolumeResponse(publish_context=context.to_map())

    async def controller_unpublish_volume(
        self, message: csi.ControllerUnpublishVolumeRequest
    ) -> csi.ControllerUnpublishVolumeResponse:
        """Detaches the volume from the node's VM, or from all VMs when no node is given."""
        _require_volume_id(message.volume_id)
        wire.require_small_maps(message)
        if _could_exist(message.volume_id):
            await self._detacher.unpublish(message.volume_id, message.node_id)
        return csi.ControllerUnpublishVolumeResponse()

    async def controller_expand_volume(
        self, message: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        """Grows the volume. The node has its part of every kind: of a raw block volume it waits for the size."""
        _require_volume_id(message.volume_id)
        wire.require_small_maps(message)
        limits = message.capacity_range or csi.CapacityRange()
        if not limits.required_bytes and not limits.limit_bytes:
            raise InvalidArgument("capacity_range is missing or empty: nothing says how large the volume shall be")
        if message.volume_capability is not None:
            wire.capability(message.volume_capability)
        capacity = CapacityRange(required=limits.required_bytes, limit=limits.limit_bytes)
        _require_possible(message.volume_id)
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=await self._expander.expand(message.volume_id, capacity), node_expansion_required=True
        )

    async def validate_volume_capabilities(
        self, message: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        """Confirms what the driver and this volume serve, or says what they do not."""
        _require_volume_id(message.volume_id)
        wire.require_small_maps(message)
        if not message.volume_capabilities:
            raise InvalidArgument("volume_capabilities is empty: there is nothing to validate")
        capabilities = [wire.capability(capability) for capability in message.volume_capabilities]
        _require_possible(message.volume_id)
        volume = await self._provisioner.require(message.volume_id)
        reason = (
            next(filter(None, map(unsupported, capabilities)), None)
            or mismatch(volume, capabilities)
            or _foreign(volume, capabilities, context=message.volume_context, parameters=message.parameters)
        )
        if reason:
            return csi.ValidateVolumeCapabilitiesResponse(message=reason)
        return csi.ValidateVolumeCapabilitiesResponse(
            confirmed=csi.ValidateVolumeCapabilitiesResponseConfirmed(
                volume_context=message.volume_context,
                volume_capabilities=message.volume_capabilities,
                parameters=message.parameters,
            )
        )

    async def controller_get_capabilities(
        self,
        message: csi.ControllerGetCapabilitiesRequest,  # noqa: ARG002 - empty
    ) -> csi.ControllerGetCapabilitiesResponse:
        """What this service does."""
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(rpc=csi.ControllerServiceCapabilityRpc(type=kind))
                for kind in CAPABILITIES
            ]
        )


def _require_volume_id(volume_id: str) -> None:
    if not volume_id:
        raise InvalidArgument("volume_id is empty")
    wire.require_short("volume_id", volume_id)


def _could_exist(volume_id: str) -> bool:
    """Whether it is worth asking the infra cluster: what can be no object's name there exists nowhere."""
    possible = names.is_volume_id(volume_id)
    if not possible:
        log.warning("impossible volume id", volume_id=volume_id)
    return possible


def _require_possible(volume_id: str) -> None:
    if not names.is_volume_id(volume_id):
        raise NotFound(f"volume {volume_id!r} does not exist: no volume of this driver has such an id")


def _foreign(
    volume: InfraVolume,
    capabilities: Collection[Capability],
    *,
    context: Mapping[str, str],
    parameters: Mapping[str, str],
) -> str | None:
    """Why context or parameters are not this volume's, or None."""
    if context and dict(context) != dict(provisioned(volume).volume_context):
        return f"volume_context is not the one of volume {volume.id}"
    if not parameters:
        return None
    try:
        wanted = digests.digest(ClassParameters.parse(parameters), capabilities)
    except InvalidArgument as error:
        return str(error)
    if digests.PARAMETERS in digests.differences(volume.digest, wanted):
        return f"volume {volume.id} was made with other parameters"
    return None
