"""Waiting for the world to become as wanted: woken by a watch where there is one, and never for ever.

A watch may be late, and some conditions change by the passing of time alone, so a wait also looks again after a while.
The pauses between attempts grow and are jittered, so that what is down or contended is not hammered by many in step.
Nothing here knows what is waited for. Time is the event loop's, which tests can turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")

LOOK_AGAIN_SECONDS = 5.0
SHORTEST_WAIT_SECONDS = 0.001
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
MOST_DOUBLINGS = 30

Changed = Callable[[], Awaitable[None]]
"""Gives an awaitable of the next change, see the ports' ``changed``."""


class Notice:
    """A ``changed`` of our own, for what other tasks of this process do."""

    def __init__(self) -> None:
        self._waiters: WeakSet[asyncio.Future[None]] = WeakSet()

    def changed(self) -> Awaitable[None]:
        """An awaitable of the next ``notify`` after this call."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        return waiter

    def notify(self) -> None:
        """Wakes everybody who waits."""
        waiters, self._waiters = self._waiters, WeakSet()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Pauses:
    """Each ``next`` is twice the one before, up to the longest, minus up to half of it by chance; in seconds."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._taken = 0

    def next(self) -> float:
        """The pause before the next attempt."""
        full = min(self._longest, self._first * 2.0 ** min(self._taken, MOST_DOUBLINGS))
        self._taken += 1
        return full * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, hides nothing

    def reset(self) -> None:
        """To be called when an attempt got somewhere."""
        self._taken = 0


async def until(
    check: Callable[[], Awaitable[T | None]],
    *,
    changed: Sequence[Changed],
    seconds: float,
    look_again: float | Pauses = LOOK_AGAIN_SECONDS,
) -> T | None:
    """Calls ``check`` at every change until it gives something other than None, and returns that.

    Args:
        check: looks and decides; its errors end the wait.
        changed: what wakes, any of it; taken before each look, so that no change is missed. May be empty.
        seconds: the longest wait; None is returned then, after one last look.
        look_again: seconds after which to look even though nothing woke us, always the same or growing.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        changes = [change() for change in changed]
        found = await check()
        left = end - loop.time()
        if found is not None or left < SHORTEST_WAIT_SECONDS:
            return found
        pause = look_again.next() if isinstance(look_again, Pauses) else look_again
        await _first(changes, seconds=min(left, pause))


async def _first(changes: Sequence[Awaitable[None]], *, seconds: float) -> None:
    """Waits for any of the changes, or until the time is over."""
    if not changes:
        await asyncio.sleep(seconds)
        return
    waiters = [asyncio.ensure_future(change) for change in changes]
    try:
        await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()


async def attempts(count: int) -> AsyncIterator[int]:
    """Counts attempts from 0, with growing, jittered pauses between them, in which the others get on."""
    pauses = Pauses(first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
    for number in range(count):
        yield number
        if number + 1 < count:
            await asyncio.sleep(pauses.next())
