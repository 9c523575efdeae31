"""Waking those who wait for the next change of an object, by name.

A waiter takes the awaitable first, then reads, then awaits: so no change falls in between. What nobody holds any more
costs nothing, because events are kept by their waiters only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any
from weakref import WeakValueDictionary


class NextChange:
    """Awaitable that is done at the next announcement after it was made; any number of tasks may await it."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._event.wait().__await__()


class Changes:
    """Announcements of one kind of object, which several caches may share."""

    def __init__(self) -> None:
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def after_now(self, name: str) -> NextChange:
        """The next change of the named object."""
        event = self._events.get(name)
        if event is None:
            event = self._events[name] = asyncio.Event()
        return NextChange(event)

    def announce(self, name: str) -> None:
        """The named object changed, appeared or went."""
        event = self._events.pop(name, None)
        if event is not None:
            event.set()

    def announce_all(self) -> None:
        """Anything may have changed."""
        for name in list(self._events):
            self.announce(name)
