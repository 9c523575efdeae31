"""A gRPC server on one endpoint, from its first byte to an orderly end.

All five CSI services are registered on every endpoint, because a Go client reads the answer of an unknown *service*
as Unknown, but that of an unimplemented method as Unimplemented. The end has an order that grpclib does not know: its
close cancels running handlers and leaves their callers waiting, so calls are drained before it, and its wait_closed
can hang while a client stays connected, so that is bounded.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi._csi.csi.v1.methods import METHODS
from kubevirt_csi.rpc.calls import Calls
from kubevirt_csi.rpc.gate import Gate
from kubevirt_csi.rpc.running import RunningMutations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from grpclib._typing import IServable
    from grpclib.server import Stream

    from kubevirt_csi.observe.metrics import RpcMetrics
    from kubevirt_csi.rpc.endpoint import BoundSocket, Endpoint

log = structlog.get_logger(__name__)

WAIT_CLOSED_SECONDS = 1.0


def csi_services(
    *, identity: csi.IdentityBase, controller: csi.ControllerBase | None = None, node: csi.NodeBase | None = None
) -> list[IServable]:
    """All five services of CSI; those not given answer Unimplemented to every method."""
    given: dict[str, IServable | None] = {
        "csi.v1.Identity": identity,
        "csi.v1.Controller": controller,
        "csi.v1.Node": node,
    }
    return [given.get(service) or Absent(service) for service in METHODS]


class Absent:
    """A service that this process does not have. Requests are not read, so their messages need not be imported."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __mapping__(self) -> Mapping[str, Handler]:
        """All methods, as streams of answers, which says nothing about a request until somebody reads it."""
        handler = Handler(_unimplemented, Cardinality.UNARY_STREAM, csi.ProbeRequest, csi.ProbeResponse)
        return {f"/{self._service}/{method}": handler for method in METHODS[self._service]}


async def _unimplemented(_stream: Stream[Any, Any]) -> NoReturn:
    raise GRPCError(Status.UNIMPLEMENTED)


@contextmanager
def termination() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set as long as the block runs.

    A composition root enters it first of all: pid 1 of a container ignores a signal without a handler, so one that
    came while the role still starts would be lost, and the pod be killed when its grace period is over.
    """
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    wanted = (signal.SIGTERM, signal.SIGINT)
    for number in wanted:
        loop.add_signal_handler(number, signalled.set)
    try:
        yield signalled
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)


class RpcServer:
    """Serves the services on the endpoint's socket, each behind ``rpc.calls``."""

    def __init__(self, *, endpoint: Endpoint, services: Sequence[IServable], metrics: RpcMetrics) -> None:
        self._endpoint = endpoint
        self._gate = Gate()
        self._mutations = RunningMutations(counted=metrics.mutations_running)
        calls = Calls(gate=self._gate, mutations=self._mutations, metrics=metrics)
        self._server = Server([calls.wrap(service) for service in services])
        self._bound: BoundSocket | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Binds the socket and serves.

        Raises:
            EndpointError: the socket cannot be bound.
        """
        self._bound = self._endpoint.bind()
        await self._server.start(sock=self._bound.listener)
        log.info("serving", path=str(self._endpoint.path))

    async def stop(self, *, grace_seconds: float) -> None:
        """Turns new calls away, lets running calls and mutations end within the grace period, then closes.

        May be called again and by several: all wait for the one end.
        """
        if self._bound is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._bound, grace_seconds), name="stop serving")
        await asyncio.shield(self._stopping)

    async def _stop(self, bound: BoundSocket, grace_seconds: float) -> None:
        self._gate.close()
        log.info("draining", path=str(self._endpoint.path), grace_seconds=grace_seconds)
        try:
            async with asyncio.timeout(grace_seconds):
                await self._gate.empty()
                await self._mutations.drain()
        except TimeoutError:
            log.warning("grace period is over", path=str(self._endpoint.path))
        await self._mutations.cancel()
        self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_CLOSED_SECONDS):
                await self._server.wait_closed()
        bound.unlink()
        log.info("stopped serving", path=str(self._endpoint.path))
