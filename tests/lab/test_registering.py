"""The lab in kubelet's place: whichever plug-in appears in the folder is registered, once for each of its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from e2e.lab.registering import register_plugins
from kubevirt_csi._csi import pluginregistration as api

SECONDS = 30


class Plugin(api.RegistrationBase):
    """A plug-in that is told whether it is registered; the first calls may be refused."""

    def __init__(self, *, refusals: int = 0) -> None:
        self.told: asyncio.Queue[api.RegistrationStatus] = asyncio.Queue()
        self._refusals = refusals

    async def get_info(self, message: api.InfoRequest) -> api.PluginInfo:
        del message
        if self._refusals:
            self._refusals -= 1
            raise GRPCError(Status.UNAVAILABLE, "not yet")
        return api.PluginInfo(type="CSIPlugin", name="csi.example.com", endpoint="/csi.sock")

    async def notify_registration_status(self, message: api.RegistrationStatus) -> api.RegistrationStatusResponse:
        self.told.put_nowait(message)
        return api.RegistrationStatusResponse()

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[None]:
        server = Server([self])
        await server.start(path=str(socket))
        try:
            yield
        finally:
            server.close()
            await asyncio.to_thread(socket.unlink, missing_ok=True)

    async def registered(self) -> bool:
        async with asyncio.timeout(SECONDS):
            return (await self.told.get()).plugin_registered


@pytest.fixture
def notes() -> asyncio.Queue[str]:
    return asyncio.Queue()


@pytest.fixture
async def registry(tmp_path: Path, notes: asyncio.Queue[str]) -> AsyncIterator[Path]:
    task = asyncio.create_task(register_plugins(tmp_path, note=notes.put_nowait))
    yield tmp_path
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_plugin_that_appears_is_registered_and_noted(registry: Path, notes: asyncio.Queue[str]) -> None:
    plugin = Plugin()
    async with plugin.serving(registry / "a.sock"):
        assert await plugin.registered()
        assert await notes.get() == f"csi.example.com is registered at {registry.parent}"


async def test_a_plugin_that_does_not_answer_yet_is_asked_again(registry: Path) -> None:
    plugin = Plugin(refusals=2)
    async with plugin.serving(registry / "a.sock"):
        assert await plugin.registered()


async def test_a_plugin_that_comes_back_is_registered_again_and_no_other_one(registry: Path) -> None:
    steady, restarted = Plugin(), Plugin()
    async with steady.serving(registry / "steady.sock"):
        assert await steady.registered()
        for name in ("first.sock", "second.sock"):
            async with restarted.serving(registry / name):
                assert await restarted.registered()
        assert steady.told.empty()


async def test_a_socket_with_a_leading_dot_is_not_looked_at(registry: Path) -> None:
    hidden, plugin = Plugin(), Plugin()
    async with hidden.serving(registry / ".hidden.sock"), plugin.serving(registry / "plain.sock"):
        assert await plugin.registered()
        assert hidden.told.empty()
