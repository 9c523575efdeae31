"""One read for all who ask for it at the same moment.

One event of a watch wakes everybody who waits for the object, and each of them wants to read it afresh. A read that has
not begun yet is as fresh for the last of them as for the first, so they share it; whoever asks after it has begun gets
the next one. Nothing here knows what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Together(Generic[T]):
    """Calls ``read`` once for all callers of a name that come before it begins."""

    def __init__(self, read: Callable[[str], Awaitable[T]]) -> None:
        self._read = read
        self._to_begin: dict[str, asyncio.Task[T]] = {}

    async def read(self, name: str) -> T:
        """What the read gives or raises. A caller that is cancelled leaves the read to the others."""
        task = self._to_begin.get(name)
        if task is None:
            task = self._to_begin[name] = asyncio.create_task(self._begin(name))
            task.add_done_callback(_heard)
        return await asyncio.shield(task)

    async def _begin(self, name: str) -> T:
        await asyncio.sleep(0)  # lets all that were woken together ask
        del self._to_begin[name]
        return await self._read(name)


def _heard(task: asyncio.Task[T]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
