"""The gateway on real loopback sockets: what passes, what does not, and what a client sees of each door."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.lab.gateway import Door, Gateway, serve
from e2e.lab.gatewaycontrol import Report, ask, close_connections, listen, tell
from e2e.lab.pki import Authority
from e2e.lab.ports import Ports
from e2e.lab.state import LabError

DEADLINE_SECONDS = 10.0
FAREWELL = b"x" * 8 * 1024 * 1024  # more than sockets hold
DIRECTLY = [b"direct\n"] * 5
HALF_OPEN, GONE, OPEN = Door(mode="half-open"), Door(mode="gone"), Door()


@dataclass(slots=True)
class Server:
    """Says back every line, and what it has been told."""

    port: int
    heard: list[bytes] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                self.heard.append(line)
                self.told.set()
                writer.write(b"re: " + line)
                if line == b"bye\n":
                    writer.write(FAREWELL)
                    break
                await writer.drain()
        writer.close()


class Pauses:
    """Stands for time that passes: whoever pauses waits until `over`."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[float] = asyncio.Queue()
        self.over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.put_nowait(seconds)
        await self.over.wait()


class Client:
    """One connection through the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, line: bytes) -> None:
        self.writer.write(line)

    async def hear(self) -> bytes:
        """The next line; empty when the connection has ended."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.readline()
            except ConnectionResetError:
                return b""


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as ports:
        yield ports


@asynccontextmanager
async def listening(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(port)
    listener = await asyncio.start_server(server.answer, "127.0.0.1", port, ssl=tls)
    try:
        yield server
    finally:
        listener.close()


@pytest.fixture
async def server(ports: Ports) -> AsyncIterator[Server]:
    async with listening(ports.take()) as server:
        yield server


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def gateway(ports: Ports, server: Server, pauses: Pauses) -> AsyncIterator[Gateway]:
    async with serve(port=ports.take(), target=server.port, pause=pauses) as gateway:
        yield gateway


@asynccontextmanager
async def connected(gateway: Gateway, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=tls)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def test_what_a_client_says_reaches_the_server_and_the_answer_comes_back(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        for line in (b"one\n", b"two\n"):
            client.say(line)
            assert await client.hear() == b"re: " + line


async def test_more_than_one_chunk_arrives_whole_and_in_order(gateway: Gateway, server: Server) -> None:
    line = bytes(range(11, 256)) * 250 + b"\n"  # below what a line may have, above what is read at once
    async with connected(gateway) as client:
        client.say(line)
        assert await client.hear() == b"re: " + line
    assert server.heard == [line]


async def test_the_servers_certificate_is_verified_through_the_gateway(ports: Ports, tmp_path: Path) -> None:
    authority = Authority("test-ca")
    files = authority.issue_server("server", ["127.0.0.1"]).write(tmp_path, "server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    trust = ssl.create_default_context(cadata=authority.pair.certificate.decode())
    async with (
        listening(ports.take(), tls) as server,
        serve(port=ports.take(), target=server.port) as gateway,
        connected(gateway, trust) as client,
    ):
        client.say(b"hello\n")
        assert await client.hear() == b"re: hello\n"


async def test_the_last_words_of_a_server_get_through(gateway: Gateway) -> None:
    async with connected(gateway) as client, asyncio.timeout(DEADLINE_SECONDS):
        client.say(b"bye\n")
        assert await client.hear() == b"re: bye\n"
        assert await client.reader.read() == FAREWELL


async def test_a_client_that_leaves_ends_the_servers_connection_too(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        client.say(b"one\n")
        await client.hear()
        [connection] = gateway._connections
    async with asyncio.timeout(DEADLINE_SECONDS):
        await connection
    assert gateway.connections == 0


async def test_without_a_server_the_clients_connection_ends(ports: Ports) -> None:
    async with serve(port=ports.take(), target=ports.take()) as gateway, connected(gateway) as client:
        assert await client.hear() == b""


async def test_a_slow_server_is_asked_at_once_and_its_answers_are_held_back(
    gateway: Gateway, server: Server, pauses: Pauses
) -> None:
    await gateway.become(Door(mode="slow", seconds=2.5))
    async with connected(gateway) as client:
        client.say(b"one\n")
        assert await pauses.asked.get() == 2.5
        assert server.heard == [b"one\n"]
        answer = asyncio.ensure_future(client.hear())
        await asyncio.sleep(0)
        assert not answer.done()
        pauses.over.set()
        assert await answer == b"re: one\n"


async def test_a_server_that_is_gone_refuses_and_closes_what_is_open(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        client.say(b"one\n")
        await client.hear()
        await gateway.become(GONE)
        assert await client.hear() == b""
    with pytest.raises(ConnectionRefusedError):
        async with connected(gateway):
            pass


async def test_a_server_that_comes_back_is_found_at_the_same_port(gateway: Gateway) -> None:
    await gateway.become(GONE)
    await gateway.become(OPEN)
    async with connected(gateway) as client:
        client.say(b"one\n")
        assert await client.hear() == b"re: one\n"


async def talk_directly(server: Server) -> None:
    """Says a few lines past the gateway; meanwhile everything else that is on its way arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    client = Client(reader, writer)
    for line in DIRECTLY:
        client.say(line)
        await client.hear()
    writer.transport.abort()


async def test_what_is_said_to_a_half_open_server_is_never_delivered(gateway: Gateway, server: Server) -> None:
    async with connected(gateway) as before:
        before.say(b"one\n")
        await before.hear()
        await gateway.become(HALF_OPEN)
        async with connected(gateway) as after:
            before.say(b"lost\n")
            after.say(b"lost too\n")
            await talk_directly(server)
            await gateway.become(OPEN)
            assert (await before.hear(), await after.hear()) == (b"", b"")
    async with connected(gateway) as client:
        client.say(b"two\n")
        assert await client.hear() == b"re: two\n"
    assert server.heard == [b"one\n", *DIRECTLY, b"two\n"]


async def test_closing_ends_every_connection_once_and_lets_new_ones_in(gateway: Gateway) -> None:
    async with connected(gateway) as one, connected(gateway) as two:
        for client in (one, two):
            client.say(b"one\n")
            await client.hear()
        assert await gateway.close_connections() == 2
        assert (await one.hear(), await two.hear()) == (b"", b"")
    async with connected(gateway) as client:
        client.say(b"two\n")
        assert await client.hear() == b"re: two\n"


async def test_the_end_of_a_gateway_is_the_end_of_its_connections(ports: Ports, server: Server) -> None:
    async with AsyncExitStack() as clients:
        async with serve(port=ports.take(), target=server.port) as gateway:
            client = await clients.enter_async_context(connected(gateway))
            client.say(b"one\n")
            await client.hear()
        assert await client.hear() == b""
    with pytest.raises(ConnectionRefusedError):
        async with connected(gateway):
            pass


# Orders over the socket


@pytest.fixture
async def control(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "gateway.sock"
    async with listen(gateway, path):
        yield path


async def test_an_order_changes_the_door_and_tells_how_it_is(gateway: Gateway, control: Path) -> None:
    door = Door(mode="slow", seconds=0.5)
    assert await asyncio.to_thread(tell, control, door) == Report(door=door, connections=0)
    assert gateway.door == door


async def test_asking_changes_nothing_and_counts_the_clients(gateway: Gateway, control: Path) -> None:
    async with connected(gateway) as client:
        client.say(b"one\n")
        await client.hear()
        assert await asyncio.to_thread(ask, control) == Report(door=OPEN, connections=1)


async def test_the_order_to_close_tells_how_many_it_closed(gateway: Gateway, control: Path) -> None:
    async with connected(gateway) as client:
        client.say(b"one\n")
        await client.hear()
        assert await asyncio.to_thread(close_connections, control) == Report(door=OPEN, connections=0, closed=1)
        assert await client.hear() == b""


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        pytest.param(b'{"mode": "ajar"}\n', "no door 'ajar'; there are: open, slow, gone", id="no such door"),
        pytest.param(b'{"mode": "slow", "seconds": 1e9}\n', "seconds: from 0 to 600", id="too slow"),
        pytest.param(b'{"mode": "slow", "seconds": "x"}\n', "could not convert", id="no number"),
        pytest.param(b"[]\n", '{"error": ', id="no object"),
        pytest.param(b"door\n", "Expecting value", id="no JSON"),
        pytest.param(b"", "Expecting value", id="nothing"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(
    gateway: Gateway, control: Path, order: bytes, complaint: str
) -> None:
    reader, writer = await asyncio.open_unix_connection(control)
    writer.write(order)
    writer.write_eof()
    assert complaint in (await reader.readline()).decode()
    writer.close()
    assert gateway.door == OPEN


async def test_a_gateway_that_does_not_answer_is_an_error_that_names_its_socket(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"gateway\.sock does not answer .*does the lab run"):
        ask(tmp_path / "gateway.sock")
