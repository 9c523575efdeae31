"""A small HTTP server on loopback that answers as a test tells it, and a clock that only pauses move."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from kubevirt_csi.infra.answers import Place
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.credentials import Credentials, from_kubeconfig

PLACE = Place(cluster="infra cluster", namespace="tenant-a")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server got it."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(slots=True)
class FakeApi:
    """Answers each request with the next handler, the last one again and again."""

    handlers: list[Handler] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    server: str = ""

    def answers(self, *handlers: Handler) -> None:
        self.handlers = list(handlers)

    def kubeconfig(self, path: Path, token: str = "first") -> Path:  # noqa: S107 - no secret
        """Writes a kubeconfig for this server."""
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.server}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(json.dumps(config))
        return path

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.seen.append(
            Seen(request.method, request.path, dict(request.query), dict(request.headers), json.loads(text or "null"))
        )
        handler = self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0]
        return await handler(request)


class Clock:
    """Time that passes in pauses only."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.time

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds


@asynccontextmanager
async def serving() -> AsyncIterator[FakeApi]:
    """Runs the server while the block runs."""
    api = FakeApi()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(api: FakeApi, directory: Path, clock: Clock | None = None) -> AsyncIterator[Connection]:
    """A connection to the server, with the clock's time."""
    clock = clock or Clock()
    credentials = Credentials(from_kubeconfig(api.kubeconfig(directory / "kubeconfig")), cluster="infra cluster")
    try:
        yield Connection(credentials, place=PLACE, pause=clock.pause, now=clock.now)
    finally:
        await credentials.aclose()


def status(code: int, reason: str = "", message: str = "", **more: Any) -> Handler:
    """A Kubernetes Status."""
    headers = more.pop("headers", {})
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, **more}
    return answer(code, json.dumps(body), "application/json", headers)


def found(body: Any) -> Handler:
    """200 with a JSON object."""
    return answer(200, json.dumps(body), "application/json")


def answer(
    code: int, text: str = "", content_type: str = "text/plain", headers: Mapping[str, str] | None = None
) -> Handler:
    """Any answer."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text, content_type=content_type, headers=headers)

    return handle


async def reset(request: web.Request) -> web.StreamResponse:
    """Drops the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
