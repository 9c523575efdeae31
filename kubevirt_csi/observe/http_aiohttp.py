"""Serves the health and metrics pages with aiohttp, for the role that has it loaded anyway: the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from aiohttp import web

if TYPE_CHECKING:
    from kubevirt_csi.observe.address import HttpAddress
    from kubevirt_csi.observe.health import Pages

log = structlog.get_logger(__name__)

SHUTDOWN_SECONDS = 1.0


class HttpServer:
    """``pages`` on the address, from ``start`` to ``stop``."""

    def __init__(self, *, address: HttpAddress, pages: Pages) -> None:
        self._address = address
        self._pages = pages
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)

    @property
    def port(self) -> int:
        """The port in use, which the system chose when the address says 0."""
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Binds and serves.

        Raises:
            OSError: the address cannot be bound.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        log.info("serving http", address=str(self._address), port=self.port)

    async def stop(self) -> None:
        """Closes; may be called again."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        page = self._pages.get(request.path)
        return web.Response(status=page.status, body=page.body, headers={"Content-Type": page.content_type})
