"""Services to call in the tests of the RPC layer; what they do is said by the test, on the object it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.observe import context


async def succeed() -> None:
    """The behaviour of a method that has nothing to wait for."""


class ScriptedController(csi.ControllerBase):
    """A controller whose volume calls run ``behaviour``, which a test replaces."""

    def __init__(self) -> None:
        self.behaviour: Callable[[], Awaitable[None]] = succeed
        self.runs = 0
        self.ended = 0

    async def create_volume(self, message: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        await self._run()
        return csi.CreateVolumeResponse(volume=csi.Volume(volume_id=message.name, capacity_bytes=1))

    async def delete_volume(self, message: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:  # noqa: ARG002 - the wire's
        await self._run()
        return csi.DeleteVolumeResponse()

    async def controller_publish_volume(
        self,
        message: csi.ControllerPublishVolumeRequest,
    ) -> csi.ControllerPublishVolumeResponse:
        await self._run()
        return csi.ControllerPublishVolumeResponse(publish_context={"node": message.node_id})

    async def list_volumes(self, message: csi.ListVolumesRequest) -> csi.ListVolumesResponse:  # noqa: ARG002 - the wire's
        await self._run()
        return csi.ListVolumesResponse(entries=[csi.ListVolumesResponseEntry()])

    async def _run(self) -> None:
        self.runs += 1
        await self.behaviour()
        self.ended += 1


class Latch:
    """A behaviour that waits until the test opens it, and tells when it was entered."""

    def __init__(self, *, waiting_for: str = "") -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self._waiting_for = waiting_for

    async def __call__(self) -> None:
        context.progress(self._waiting_for)
        self.entered.set()
        await self.opened.wait()

    def open(self) -> None:
        self.opened.set()


def raising(error: Exception, *, after_write: bool = False) -> Callable[[], Awaitable[None]]:
    """A behaviour that fails, if asked after it has changed something outside."""

    async def behaviour() -> None:
        if after_write:
            context.mark_written()
        raise error

    return behaviour
