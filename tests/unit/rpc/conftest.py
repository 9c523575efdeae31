from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from grpclib.client import Channel
from structlog.testing import LogCapture

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.rpc.endpoint import Endpoint
from kubevirt_csi.rpc.serving import RpcServer, csi_services
from kubevirt_csi.services.identity import IdentityService
from tests.unit.rpc.services import ScriptedController


@dataclass(slots=True)
class Served:
    """A driver on a real socket and a client of it."""

    server: RpcServer
    controller: ScriptedController
    metrics: Metrics
    path: Path
    channel: Channel

    @property
    def stub(self) -> csi.ControllerStub:
        return csi.ControllerStub(self.channel)

    async def joined(self, volume: str, *, calls: int) -> None:
        """Returns when so many calls have come to wait for the volume's running mutation."""
        while self.server._mutations._by_volume[volume].calls < calls:  # noqa: ASYNC110 - a turn of the loop, no time
            await asyncio.sleep(0)


@pytest.fixture
def log_lines() -> list[MutableMapping[str, object]]:
    """What was logged during the test, as the processors get it."""
    capture = LogCapture()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, capture],
        wrapper_class=structlog.make_filtering_bound_logger("debug"),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    return capture.entries


@pytest.fixture
async def served(
    tmp_path: Path,
    log_lines: list[MutableMapping[str, object]],  # noqa: ARG001 - so that the log is kept and not printed
) -> AsyncIterator[Served]:
    """A scripted controller behind the wrapper, on a socket of this test."""
    controller, metrics = ScriptedController(), Metrics(role="controller")
    path = tmp_path / "csi.sock"
    server = RpcServer(
        endpoint=Endpoint(path),
        services=csi_services(identity=IdentityService(ready=lambda: True), controller=controller),
        metrics=metrics.rpc,
    )
    await server.start()
    channel = Channel(path=str(path))
    yield Served(server, controller, metrics, path, channel)
    channel.close()
    await server.stop(grace_seconds=0)
