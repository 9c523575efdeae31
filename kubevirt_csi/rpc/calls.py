"""The one wrapper around every gRPC method: gate, deadline, joining, error map, log line, metrics.

It wraps a service's ``__mapping__``, which works the same over a socket and over ``grpclib.testing.ChannelFor``. For
a unary method the generated glue gets an ``_Exchange`` in place of the network stream, so that the method becomes a
plain "request in, reply out" which can run in a task that outlives the stream.

The surprising fact: grpclib answers Unknown to any exception and cancels the handler at the caller's deadline, and to
the sidecars Unknown means "certainly not in progress". So the answer is given a little before the deadline, and each
exception gets a code here that says whether something may still be under way.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from kubevirt_csi import errors
from kubevirt_csi.domain.names import shown
from kubevirt_csi.observe import context
from kubevirt_csi.rpc.endpoint import peer_uid
from kubevirt_csi.rpc.mutations import mutation_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from grpclib._typing import IServable
    from grpclib.const import Handler
    from grpclib.server import Stream

    from kubevirt_csi.observe.metrics import RpcMetrics
    from kubevirt_csi.rpc.gate import Gate
    from kubevirt_csi.rpc.running import RunningMutations

log = structlog.get_logger(__name__)

# The answer leaves this much before the caller's deadline: a tenth of the time given, at most two seconds.
LARGEST_MARGIN_SECONDS = 2.0
MARGIN_SHARE = 0.1
# For callers that set no deadline; kubelet and the sidecars always do.
DEFAULT_LIMIT_SECONDS = 300.0

# What betterproto2 raises for bytes that are no such message: broken off, no UTF-8, or fields of other wire types.
UNDECODABLE = (AttributeError, EOFError, LookupError, TypeError, ValueError)

# Asked several times a minute or before each mount, and never interesting unless they fail.
QUIET = frozenset(
    {
        "Probe",
        "GetInfo",
        "GetPluginInfo",
        "GetPluginCapabilities",
        "ControllerGetCapabilities",
        "GroupControllerGetCapabilities",
        "NodeGetCapabilities",
        "NodeGetInfo",
        "NodeGetVolumeStats",
        "NodeGetVolumeHealth",
    }
)
LOGGED_FIELDS = ("name", "volume_id", "node_id", "snapshot_id")
LONGEST_LOGGED = 256  # of characters of one field: whoever sends more is refused, and must not fill the log


@dataclass(slots=True)
class Call:
    """One call on its way through: what the log line says about it."""

    method: str
    started: float
    limit: float
    """Seconds from the start within which the answer has to leave."""
    request: Any = None
    joined: bool = False
    work: context.Work = field(default_factory=context.Work)
    unforeseen: Exception | None = None

    def subject(self) -> dict[str, str]:
        """The names in the request that are safe and useful to log; never the request itself."""
        found = {name: getattr(self.request, name, "") for name in LOGGED_FIELDS}
        return {name: value[:LONGEST_LOGGED] for name, value in found.items() if value}


class Calls:
    """Wraps the services of one process."""

    def __init__(self, *, gate: Gate, mutations: RunningMutations, metrics: RpcMetrics) -> None:
        self._gate = gate
        self._mutations = mutations
        self._metrics = metrics

    def wrap(self, service: IServable) -> IServable:
        """The same service with every method behind this wrapper."""
        return _Wrapped(
            {
                path: handler._replace(func=self._wrapped(path, handler))
                for path, handler in service.__mapping__().items()
            }
        )

    def _wrapped(self, method: str, handler: Handler) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        async def rpc(stream: Stream[Any, Any]) -> None:
            call = Call(method=method, started=_now(), limit=_limit(stream))
            structlog.contextvars.bind_contextvars(request_id=secrets.token_hex(8))
            self._metrics.started(method)
            status, text = Status.CANCELLED, None
            try:
                await self._answer(call, handler, stream)
                status = Status.OK
            except Exception as error:
                answer = _translated(error, call)
                status, text = answer.status, answer.message
                raise answer from error
            finally:
                seconds = _now() - call.started
                self._metrics.finished(method, code=status.name, seconds=seconds)
                _log_line(call, stream, status=status, text=text, seconds=seconds)

        return rpc

    async def _answer(self, call: Call, handler: Handler, stream: Stream[Any, Any]) -> None:
        with self._gate:
            if handler.cardinality is not Cardinality.UNARY_UNARY:
                await _in_time(call, handler.func(stream))
                return
            call.request = await _receive(stream)
            await stream.send_message(await self._reply(call, handler))

    async def _reply(self, call: Call, handler: Handler) -> Any:
        async def method() -> Any:
            exchange = _Exchange(call.request)
            await handler.func(exchange)
            return exchange.reply

        mutation = mutation_of(call.method, call.request)
        if mutation is None:
            return await _in_time(call, method())
        running = self._mutations.join_or_start(mutation, start=method)
        call.joined = running.calls > 0
        call.work = running.work
        try:
            return await running.result(timeout=call.limit)
        except TimeoutError as error:
            if running.task.done():
                raise
            raise errors.DeadlineExceeded(
                f"{mutation} of volume {mutation.volume}: {_reason(call)}; it goes on"
            ) from error


@dataclass(frozen=True, slots=True)
class _Wrapped:
    mapping: Mapping[str, Handler]

    def __mapping__(self) -> Mapping[str, Handler]:
        return self.mapping


class _Exchange:
    """What the generated glue of a unary method gets for a stream: it holds the request and keeps the reply."""

    __slots__ = ("_request", "reply")

    def __init__(self, request: Any) -> None:
        self._request = request
        self.reply: Any = None

    async def recv_message(self) -> Any:
        return self._request

    async def send_message(self, reply: Any) -> None:
        self.reply = reply


async def _receive(stream: Stream[Any, Any]) -> Any:
    try:
        request = await stream.recv_message()
    except UNDECODABLE as error:
        raise errors.InvalidArgument("the request cannot be decoded") from error
    if request is None:
        raise errors.InvalidArgument("the call carries no request message")
    return request


async def _in_time(call: Call, work: Awaitable[Any]) -> Any:
    """Awaits what only reads, and gives it up when the caller's time is over."""
    context.begin(call.work)
    limit = asyncio.timeout(call.limit)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise errors.DeadlineExceeded(f"{call.method}: {_reason(call)}") from error


def _reason(call: Call) -> str:
    return (
        f"still waiting for {call.work.waiting_for}"
        if call.work.waiting_for
        else f"no result within {call.limit:.1f} s"
    )


def _translated(error: Exception, call: Call) -> GRPCError:
    """The answer to the caller: a status chosen by whether something may be under way, a text, and no details."""
    match error:
        case errors.DriverError():
            return GRPCError(error.status, _naming_the_volume(call, str(error)))
        case GRPCError(status=Status.UNIMPLEMENTED):
            return GRPCError(error.status, error.message or f"{call.method} is not implemented by this driver")
        case TimeoutError():
            return GRPCError(Status.DEADLINE_EXCEEDED, f"{call.method}: {_reason(call)}")
        case _:
            call.unforeseen = error
            # The type alone: the text of a foreign exception may hold anything, a secret too.
            text = f"{call.method}: unforeseen {type(error).__name__}, see the driver's log"
            return GRPCError(Status.UNAVAILABLE if call.work.written else Status.INTERNAL, text)


def _naming_the_volume(call: Call, text: str) -> str:
    """What happened to a disk or to a program was told by one who does not know of volumes."""
    volume = shown(getattr(call.request, "volume_id", ""))
    return text if volume in text else f"volume {volume}: {text}"


def _log_line(call: Call, stream: Stream[Any, Any], *, status: Status, text: str | None, seconds: float) -> None:
    log.log(
        _level(call, status),
        "rpc",
        method=call.method,
        code=status.name,
        duration_ms=round(seconds * 1000, 1),
        peer_uid=peer_uid(stream.peer),
        **call.subject(),
        **({"joined": True} if call.joined else {}),
        **({"error": text} if text else {}),
        **({"exc_info": call.unforeseen} if call.unforeseen else {}),
    )


def _level(call: Call, status: Status) -> int:
    if call.unforeseen is not None:
        return logging.ERROR
    name = call.method.rpartition("/")[2]
    if status is Status.OK and name in QUIET:
        return logging.DEBUG
    return logging.INFO


def _limit(stream: Stream[Any, Any]) -> float:
    if stream.deadline is None:
        return DEFAULT_LIMIT_SECONDS
    remaining = max(stream.deadline.time_remaining(), 0.0)
    return remaining - min(LARGEST_MARGIN_SECONDS, remaining * MARGIN_SHARE)


def _now() -> float:
    return asyncio.get_running_loop().time()
