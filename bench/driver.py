"""The calls of one volume's life, sent to the controller's own socket as the sidecars send them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpclib.client import Channel

from e2e.lab.api import eventually
from e2e.lab.loopnodes import serves
from e2e.lab.management import NAMESPACE
from kubevirt_csi._csi.csi import v1 as csi

CALL_SECONDS = 60.0
READY_SECONDS = 30.0
SIZE_BYTES = 2**30
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(fs_type="ext4"),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_WRITER),
)


class Driver:
    """A connection to the controller; every method returns when the call was answered with OK.

    Attributes:
        phases: what was called when: name, volume id, begin and end in seconds since the epoch.
    """

    def __init__(self, channel: Channel) -> None:
        self._stub = csi.ControllerStub(channel)
        self.phases: list[tuple[str, str, float, float]] = []

    async def create(self, name: str) -> dict[str, str]:
        """CreateVolume; returns the volume context. The volume's id is its name."""
        with_size = csi.CapacityRange(required_bytes=SIZE_BYTES)
        request = csi.CreateVolumeRequest(name=name, capacity_range=with_size, volume_capabilities=[CAPABILITY])
        begin = time.time()
        answer = await self._stub.create_volume(request, timeout=CALL_SECONDS)
        self.phases.append(("create", name, begin, time.time()))
        assert answer.volume is not None  # noqa: S101 - the specification has it in every OK
        return dict(answer.volume.volume_context)

    async def publish(self, volume: str, vm: str) -> None:
        """ControllerPublishVolume."""
        request = csi.ControllerPublishVolumeRequest(
            volume_id=volume, node_id=f"{NAMESPACE}/{vm}", volume_capability=CAPABILITY
        )
        begin = time.time()
        await self._stub.controller_publish_volume(request, timeout=CALL_SECONDS)
        self.phases.append(("publish", volume, begin, time.time()))

    async def unpublish(self, volume: str, vm: str) -> None:
        """ControllerUnpublishVolume."""
        request = csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=f"{NAMESPACE}/{vm}")
        begin = time.time()
        await self._stub.controller_unpublish_volume(request, timeout=CALL_SECONDS)
        self.phases.append(("unpublish", volume, begin, time.time()))

    async def delete(self, volume: str) -> None:
        """DeleteVolume."""
        begin = time.time()
        await self._stub.delete_volume(csi.DeleteVolumeRequest(volume_id=volume), timeout=CALL_SECONDS)
        self.phases.append(("delete", volume, begin, time.time()))


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[Driver]:
    """The controller behind the socket, once it is ready."""
    await eventually(lambda: serves(socket), what=f"the driver at {socket} is ready", deadline_seconds=READY_SECONDS)
    async with Channel(path=str(socket)) as channel:
        yield Driver(channel)
