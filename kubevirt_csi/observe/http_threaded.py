"""Serves the health and metrics pages from a thread with the standard library's server, for the node.

aiohttp would cost the node 12 MiB for three pages. The pages are still made on the event loop, each request waits for
it: so a loop that is stuck fails its liveness probe, and no state is read from two threads.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import structlog

from kubevirt_csi.observe.health import Page

if TYPE_CHECKING:
    from kubevirt_csi.observe.address import HttpAddress
    from kubevirt_csi.observe.health import Pages

log = structlog.get_logger(__name__)

LOOP_SECONDS = 5.0
"""How long a page waits for the event loop."""
CLIENT_SECONDS = 10.0


class HttpServer:
    """``pages`` on the address, from ``start`` to ``stop``; a page waits ``loop_seconds`` for the event loop."""

    def __init__(self, *, address: HttpAddress, pages: Pages, loop_seconds: float = LOOP_SECONDS) -> None:
        self._address = address
        self._pages = pages
        self._loop_seconds = loop_seconds
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port in use, which the system chose when the address says 0."""
        if self._server is None:
            raise RuntimeError("not started")
        return int(self._server.server_address[1])

    async def start(self) -> None:
        """Binds and serves.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._server = _listen(self._address, _handler(self._pages, loop, seconds=self._loop_seconds))
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()
        log.info("serving http", address=str(self._address), port=self.port)

    async def stop(self) -> None:
        """Closes; may be called again."""
        if self._server is None or self._thread is None:
            return
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(thread.join, self._loop_seconds)
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow scraper must not delay the end of the process

    def server_bind(self) -> None:
        """Past HTTPServer's own, which asks the DNS for this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()


class _DualStackServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _listen(address: HttpAddress, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    if address.host is None:
        # Every address of both families, or of IPv4 where the kernel has no IPv6.
        return _DualStackServer(("::", address.port), handler) if _has_ipv6() else _Server(("", address.port), handler)
    server = _DualStackServer if ":" in address.host else _Server
    return server((address.host, address.port), handler)


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _handler(pages: Pages, loop: asyncio.AbstractEventLoop, *, seconds: float) -> type[BaseHTTPRequestHandler]:
    async def page_at(path: str) -> Page:
        return pages.get(path)

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS

        def do_GET(self) -> None:
            page = self._page()
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def _page(self) -> Page:
            try:
                return asyncio.run_coroutine_threadsafe(page_at(self.path.partition("?")[0]), loop).result(seconds)
            except (TimeoutError, RuntimeError):  # stuck, or closed
                return Page(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not answer\n")

        def log_message(self, *_arguments: object) -> None:
            """Probes come every few seconds; they are not worth a line."""

    return Handler
