"""When something was seen for the first time by a watch of our own; times are those of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from e2e.lab.kubevirt.connection import Connection
from e2e.lab.kubevirt.resources import Object

PATIENCE_SECONDS = 60.0


class Moments:
    """Named moments in the life of named things."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str], float] = {}
        self._waiting: dict[tuple[str, str], asyncio.Event] = {}

    def note(self, name: str, moment: str) -> None:
        """It is now; only the first time counts."""
        if (name, moment) not in self._at:
            self._at[name, moment] = asyncio.get_running_loop().time()
            self._event(name, moment).set()

    async def at(self, name: str, moment: str) -> float:
        """When it was; waits for it up to a minute."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._event(name, moment).wait()
        return self._at[name, moment]

    def _event(self, name: str, moment: str) -> asyncio.Event:
        return self._waiting.setdefault((name, moment), asyncio.Event())


async def states(connection: Connection, path: str) -> AsyncIterator[tuple[str, Object]]:
    """The objects of a collection as they are, and every change from there on, for ever: type and object."""
    while True:
        listed = await connection.request("GET", path)
        for item in listed["items"]:
            yield "ADDED", item
        async for event in connection.watch(path, listed["metadata"]["resourceVersion"]):
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                yield event["type"], event["object"]
