"""The cache's behaviour towards servers that misbehave; pauses are counted, not waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.infra.cache import Cache
from kubevirt_csi.infra.changes import Changes
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.resources import Resource
from tests.unit.infra.fake_api import FakeApi

PODS = Resource("", "v1", "pods")


class Server:
    """Lists and watches; ``streams`` are written one after the other, and then watches stay open and silent."""

    def __init__(self, api: FakeApi) -> None:
        api.answers(self._handle)
        self.items: list[dict[str, Any]] = []
        self.version = 1
        self.streams: list[bytes] = []
        self.lists = 0
        self.watched_from: list[str] = []
        self.content_type = "application/json"
        self.silent = asyncio.Event()
        """Set when a watch has nothing more to say."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"kind": "PodList", "metadata": metadata, "items": self.items})
        self.watched_from.append(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        if self.streams:
            await response.write(self.streams.pop(0))
            return response
        self.silent.set()
        await asyncio.Event().wait()
        return response


class Pauses:
    """Ends the cache's run after so many pauses, without waiting."""

    def __init__(self, limit: int = 1000) -> None:
        self.taken: list[float] = []
        self._limit = limit

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        if len(self.taken) >= self._limit:
            raise Ended


class Ended(Exception):
    pass


def pod(name: str, version: int, value: str = "v") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def events(*found: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(json.dumps({"type": kind, "object": body}).encode() + b"\n" for kind, body in found)


def parse(found: dict[str, Any]) -> str:
    if found["value"] == "bad":
        raise ValueError("bad value")
    return str(found["value"])


def cache_of(
    connection: Connection, changes: Changes | None = None, pause: Callable[[float], Awaitable[None]] | None = None
) -> Cache[str]:
    return Cache(connection, PODS, parse=parse, changes=changes or Changes(), pause=pause or Pauses())


@asynccontextmanager
async def following(cache: Cache[str], server: Server) -> AsyncIterator[None]:
    """Runs the cache until the server has nothing more to say, and then the block."""
    task = asyncio.create_task(cache.run())
    silent = asyncio.create_task(server.silent.wait())
    established = cache._changes.after_now("any")
    try:
        await asyncio.wait([task, silent], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        if cache.trouble is not None:
            await established  # the answer is on its way
        yield
    finally:
        for child in (task, silent):
            child.cancel()
            with suppress(asyncio.CancelledError):
                await child


@pytest.fixture
def server(api: FakeApi) -> Server:
    return Server(api)


async def test_reading_before_the_first_list_is_unavailable_and_not_empty(connection: Connection) -> None:
    cache = cache_of(connection)
    with pytest.raises(Unavailable, match="pods were not listed yet"):
        cache.find("a")
    with pytest.raises(Unavailable):
        assert cache.names
    assert cache.trouble == "not listed yet"


async def test_a_stream_that_ends_is_continued_from_its_last_version_without_a_new_list(
    connection: Connection, server: Server
) -> None:
    server.streams = [events(("ADDED", pod("a", 5))), events(("BOOKMARK", {"metadata": {"resourceVersion": "9"}}))]
    cache = cache_of(connection)
    async with following(cache, server):
        assert cache.names == ["a"]
    assert server.watched_from == ["1", "5", "9"]
    assert server.lists == 1


async def test_half_a_line_at_the_end_is_read_again_in_the_next_stream(connection: Connection, server: Server) -> None:
    whole = events(("ADDED", pod("a", 5)), ("ADDED", pod("b", 6)))
    server.streams = [whole[:-20], events(("ADDED", pod("b", 6)))]
    cache = cache_of(connection)
    async with following(cache, server):
        assert sorted(cache.names) == ["a", "b"]
    assert server.watched_from == ["1", "5", "6"]
    assert server.lists == 1


@pytest.mark.parametrize(
    "noise",
    [
        b"<html><body>502</body></html>\n",
        b'{"type": "ADDED", "object": {}}\n',
        b"x" * 100 + b"\n",
        events(("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})),
        events(("ERROR", {"kind": "Status", "code": 500, "message": "etcdserver: mvcc"})),
    ],
    ids=["HTML", "no name", "long line", "410", "500"],
)
async def test_a_stream_that_cannot_be_trusted_leads_to_a_new_list(
    connection: Connection, server: Server, noise: bytes
) -> None:
    server.streams = [noise]
    pauses = Pauses()
    cache = Cache(connection, PODS, parse=parse, changes=Changes(), pause=pauses, longest_line_bytes=90)
    async with following(cache, server):
        pass
    assert server.lists == 2
    assert len(pauses.taken) == 1


async def test_who_waits_for_an_object_that_a_new_list_lacks_is_woken(connection: Connection, server: Server) -> None:
    server.items = [pod("a", 1)]
    changes = Changes()
    seen: list[str | None] = []

    async def pause(_: float) -> None:
        if not seen:
            server.items = []
            woken = changes.after_now("a")
            seen.append(cache.find("a"))
            waiting.append(asyncio.ensure_future(woken))

    waiting: list[asyncio.Future[None]] = []
    cache = cache_of(connection, changes, pause)
    server.streams = [events(("ERROR", {"code": 410, "message": "gone"}))]
    async with following(cache, server):
        await waiting[0]
        assert (seen, cache.find("a")) == (["v"], None)


async def test_a_server_that_always_closes_at_once_is_asked_ever_more_rarely(
    connection: Connection, server: Server
) -> None:
    server.streams = [b""] * 100
    pauses = Pauses(limit=12)
    with pytest.raises(Ended):
        await cache_of(connection, pause=pauses).run()
    assert pauses.taken[:6] == sorted(pauses.taken[:6])
    assert pauses.taken[0] >= 0.1
    assert all(5 <= pause <= 10 for pause in pauses.taken[6:])
    assert len(server.watched_from) == 12


async def test_events_make_the_pauses_short_again(connection: Connection, server: Server) -> None:
    server.streams = [b""] * 6 + [events(("ADDED", pod("a", 5)))] + [b""] * 6
    pauses = Pauses(limit=7)
    with pytest.raises(Ended):
        await cache_of(connection, pause=pauses).run()
    assert pauses.taken[5] > 2
    assert pauses.taken[6] <= 0.2


async def test_a_silent_stream_is_given_up(connection: Connection, server: Server) -> None:
    pauses = Pauses(limit=1)
    cache = Cache(connection, PODS, parse=parse, changes=Changes(), pause=pauses, idle_seconds=0.05)
    with pytest.raises(Ended):
        await cache.run()
    assert cache.trouble is not None
    assert "no answer in time" in cache.trouble
    assert server.lists == 1


async def test_an_html_page_with_code_200_is_no_watch(connection: Connection, server: Server) -> None:
    server.content_type = "text/html"
    server.streams = [b"<html>\n"]
    cache = cache_of(connection, pause=Pauses(limit=1))
    with pytest.raises(Ended):
        await cache.run()
    assert cache.trouble is not None
    assert "text/html, not a watch" in cache.trouble


async def test_an_unreadable_object_is_an_error_for_its_readers_only(connection: Connection, server: Server) -> None:
    server.items = [pod("a", 1), pod("b", 1, "bad")]
    cache = cache_of(connection)
    async with following(cache, server):
        assert cache.find("a") == "v"
        with pytest.raises(Internal, match=r"infra cluster, namespace tenant-a: pods 'b' cannot be read: bad value"):
            cache.find("b")


async def test_a_defect_in_the_cache_ends_its_run(connection: Connection, server: Server) -> None:
    def defective(_: dict[str, Any]) -> str:
        raise ZeroDivisionError

    server.items = [pod("a", 1)]
    with pytest.raises(ZeroDivisionError):
        await Cache(connection, PODS, parse=defective, changes=Changes(), pause=Pauses()).run()


async def test_every_waiter_looks_again_when_a_broken_watch_is_back(connection: Connection, server: Server) -> None:
    changes = Changes()
    cache = cache_of(connection, changes)
    waiter = asyncio.ensure_future(changes.after_now("never there"))
    async with following(cache, server):
        await waiter
