"""A door in front of an API server that can be told to be slow, shut, dead, or to throw everybody out.

It passes TCP on as it is, so TLS stays end to end: clients verify kube-apiserver's own certificate, which names the
loopback address and no port. So it answers nothing by itself; what goes wrong here is what goes wrong in networks.
The surprising fact: a client does not notice a shut door while its connection is open, so shutting it closes those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from e2e.lab.processes import Pause

Mode = Literal["open", "slow", "gone", "half-open"]

CHUNK_BYTES = 64 * 1024
CONNECT_SECONDS = 5.0
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How a gateway behaves.

    Attributes:
        mode: ``open`` passes everything on. ``slow`` holds back what the server sends, the TLS handshake's part too,
            so the first answer of a new connection comes after twice that. ``gone`` refuses connections and closes
            those that are open. ``half-open`` accepts connections and passes nothing on in either direction; when it
            ends they are all closed, as by a host that comes back without memory, and nothing of them is delivered.
        seconds: by which ``slow`` holds back.
    """

    mode: Mode = "open"
    seconds: float = 0.0


class Gateway:
    """A listener on a loopback port of its own; made by `serve`.

    Attributes:
        door: how it behaves; changed by `become`.
        port: where it listens.
    """

    def __init__(self, group: asyncio.TaskGroup, *, port: int, target: int, pause: Pause) -> None:
        self.door = Door()
        self.port = port
        self._target = target
        self._pause = pause
        self._group = group
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def server(self) -> str:
        """The API server's URL through this gateway."""
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def become(self, door: Door) -> None:
        """Behaves so from now on, towards open connections too.

        Raises:
            OSError: somebody else took the port while it was shut.
        """
        before, self.door = self.door, door
        if door.mode == "gone":
            self.shut()
        elif self._listener is None:
            self._listener = await asyncio.start_server(self._accept, LOOPBACK, self.port, limit=CHUNK_BYTES)
        if door.mode == "gone" or (before.mode == "half-open" and before != door):
            await self.close_connections()

    async def close_connections(self) -> int:
        """Closes what is open at this moment, as a load balancer that restarts; returns how many there were."""
        open_now = list(self._connections)
        for connection in open_now:
            connection.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        return len(open_now)

    def shut(self) -> None:
        """Stops listening; what is open stays open."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._group.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one client's bytes until either side ends, and then ends the other."""
        writers = [writer]
        try:
            await self._hold_while_dead()
            async with asyncio.timeout(CONNECT_SECONDS):
                answers, requests = await asyncio.open_connection(LOOPBACK, self._target, limit=CHUNK_BYTES)
            writers.append(requests)
            await _until_one_ends(self._carry(reader, requests), self._carry(answers, writer, answers=True))
        except (OSError, TimeoutError):
            pass  # no server, or one side broke off: the other sees its connection end
        except asyncio.CancelledError:
            for each in writers:
                each.transport.abort()
            raise
        finally:
            for each in writers:
                each.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool = False) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            if answers and self.door.mode == "slow":
                await self._pause(self.door.seconds)
            await self._hold_while_dead()
            sink.write(chunk)
            await sink.drain()

    async def _hold_while_dead(self) -> None:
        """Returns at once, or never: the end of ``half-open`` ends the connection."""
        if self.door.mode == "half-open":
            await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def serve(*, port: int, target: int, pause: Pause = asyncio.sleep) -> AsyncIterator[Gateway]:
    """A gateway to the target port, open while the block runs; what is connected at its end is closed.

    Raises:
        OSError: the port is taken.
    """
    async with asyncio.TaskGroup() as group:
        gateway = Gateway(group, port=port, target=target, pause=pause)
        await gateway.become(Door())
        try:
            yield gateway
        finally:
            gateway.shut()
            await gateway.close_connections()


async def _until_one_ends(*directions: Coroutine[Any, Any, None]) -> None:
    """Runs both until one ends or fails, and raises what it failed with."""
    tasks = [asyncio.ensure_future(direction) for direction in directions]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
