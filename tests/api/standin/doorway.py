"""A proxy between a controller and kube-apiserver that stops at an exact request: there the process can be killed.

A ``Hold`` stops the one request that it matches: before kube-apiserver gets it, or with the answer in hand. What is
held can be dropped, as with the connection of a process that was killed, or let through afterwards, as a packet that
was on its way. A ``Veil`` keeps a state of an object from the controller: once it is so, every watch event and every
read of the object is withheld. All other requests pass at once, and every exchange is recorded.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from e2e.lab.controlplane import ControlPlane
from e2e.lab.pki import write_private

HEADERS = ("Content-Type", "Accept", "User-Agent")
USER = "system:doorway"
CLOSE_SECONDS = 0.2

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the controller asked for; ``body`` is empty when it sent none, and a list when it is a JSON patch."""

    method: str
    path: str
    body: Any = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request that kube-apiserver has answered with the code."""

    request: Request
    code: int


@dataclass(eq=False, slots=True, kw_only=True)
class Hold:
    """Stops the first request that matches: ``answered`` is whether kube-apiserver gets it before."""

    matches: Callable[[Request], bool]
    answered: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """What was let through has got its answer."""
    _may_pass: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop(self) -> None:
        self.reached.set()
        await self._may_pass.wait()

    async def let_through(self) -> None:
        """Returns when kube-apiserver has answered."""
        self._may_pass.set()
        await self.gone.wait()


@dataclass(eq=False, slots=True, kw_only=True)
class Veil:
    """Withholds an object of ``plural`` from when ``shows`` is true of it."""

    plural: str
    name: str
    shows: Callable[[Object], bool]
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def hides(self, found: Object) -> bool:
        if found.get("metadata", {}).get("name") != self.name:
            return False
        if self.shows(found):
            self.reached.set()
        return self.reached.is_set()


class Doorway:
    """What stands in the way of the requests of one controller, and what has passed."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server
        self.holds: list[Hold] = []
        self.veils: list[Veil] = []
        self.exchanges: list[Exchange] = []

    async def handle(self, incoming: web.Request) -> web.StreamResponse:
        """Passes one request on, or holds it."""
        content = await incoming.read()
        request = Request(method=incoming.method, path=incoming.path, body=json.loads(content) if content else {})
        hold = next((h for h in self.holds if not h.reached.is_set() and h.matches(request)), None)
        if hold is not None and not hold.answered:
            await hold.stop()
        async with self._pass_on(incoming, content) as answer:
            if incoming.query.get("watch") == "true" and answer.status == 200:
                return await self._stream(incoming, answer)
            body = await answer.read()
        self.exchanges.append(Exchange(request=request, code=answer.status))
        if hold is not None and hold.answered:
            await hold.stop()
        if hold is not None:
            hold.gone.set()
        if self._is_veiled(request.path, body):
            await asyncio.Event().wait()
        return web.Response(status=answer.status, body=body, content_type=answer.content_type)

    def open(self) -> None:
        """Holds and hides nothing any more; what is held stays so."""
        self.holds.clear()
        self.veils.clear()

    def _pass_on(self, incoming: web.Request, content: bytes) -> Any:
        return self._session.request(
            incoming.method,
            URL(f"{self._server}{incoming.raw_path}", encoded=True),
            data=content,
            headers={name: incoming.headers[name] for name in HEADERS if name in incoming.headers},
        )

    async def _stream(self, incoming: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.content_type})
        await response.prepare(incoming)
        try:
            async for line in answer.content:
                if not self._is_veiled(incoming.path, line):
                    await response.write(line)
        finally:
            answer.close()
        return response

    def _is_veiled(self, path: str, content: bytes) -> bool:
        """Whether the watch event, or the object that was read, is to be withheld."""
        veils = [veil for veil in self.veils if f"/{veil.plural}" in path]
        if not veils or not content.strip():
            return False
        found = json.loads(content)
        found = found.get("object", found)
        return any([veil.hides(found) for veil in veils])  # noqa: C419 - each has to look


@asynccontextmanager
async def doorway(management: ControlPlane, directory: Path, name: str) -> AsyncIterator[tuple[Doorway, Path]]:
    """A doorway and the kubeconfig that leads through it; TLS and credentials are the doorway's own."""
    trust = ssl.create_default_context(cadata=management.authority_certificate.decode())
    files = management.authority.issue_client(f"{USER}:{name}", ["system:masters"]).write(directory, name)
    trust.load_cert_chain(files.certificate, files.key)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        door = Doorway(session, management.server)
        application = web.Application(client_max_size=2**22)
        application.router.add_route("*", "/{path:.*}", door.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            server = f"http://127.0.0.1:{runner.addresses[0][1]}"
            kubeconfig = management.client_kubeconfig(f"{USER}:{name}", server=server)
            yield door, write_private(directory / f"{name}.kubeconfig", kubeconfig)
        finally:
            await runner.cleanup()
