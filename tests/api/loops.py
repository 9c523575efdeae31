"""The event loop of the API tier's tests.

aiohttp closes a connection whose request was given up politely, that is with a farewell of TLS that nobody waits for. A
test that ends first leaves the socket to the garbage collector, and its warning fails some later test.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet


class Loop(asyncio.SelectorEventLoop):
    """Ends the farewells of its connections with itself; what nobody has closed is still warned about."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: WeakSet[asyncio.BaseTransport] = WeakSet()

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*arguments, **options)
        self._opened.add(transport)
        return transport, protocol

    def close(self) -> None:
        if not self.is_closed():
            for transport in list(self._opened):
                if transport.is_closing() and isinstance(transport, asyncio.Transport):
                    transport.abort()
            self.run_until_complete(asyncio.sleep(0))  # aborted connections are closed by the loop's next turn
        super().close()
