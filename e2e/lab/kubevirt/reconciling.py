"""The loop that every controller is: a key is reconciled whenever something about it may have changed.

One reconciliation a key at a time, several keys at once; a key that changes meanwhile is done again. Errors are logged
and retried with growing pauses, conflicts at once. Nothing is remembered but when a step began, so a restart of the
stand-in makes a step take longer and changes nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NoReturn

import structlog

from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.resources import Key

FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 5.0
LAST_DOUBLING = 5
CONFLICT = 409

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Does what is to do for the key; returns the seconds after which to look again, None when only a change matters."""

log = structlog.get_logger()


class Reconciler:
    """Runs one reconcile function for the keys that are added."""

    def __init__(self, name: str, reconcile: Reconcile) -> None:
        self._name = name
        self._reconcile = reconcile
        self._added = asyncio.Event()
        self._waiting: set[Key] = set()
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def add(self, key: Key) -> None:
        """Has the key reconciled as soon as possible."""
        self._waiting.add(key)
        self._added.set()

    async def run(self) -> NoReturn:
        """Works for ever."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._added.wait()
                self._added.clear()
                for key in self._waiting - self._busy:
                    self._waiting.discard(key)
                    self._busy.add(key)
                    tasks.create_task(self._work(key))

    async def _work(self, key: Key) -> None:
        try:
            again = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - one odd object must not stop the work on all the others
            again = self._retry_pause(key, error)
        else:
            self._failures.pop(key, None)
        self._busy.discard(key)
        if again is not None:
            self._add_after(key, again)
        self._added.set()  # the key may have been added again while it was busy

    def _retry_pause(self, key: Key, error: Exception) -> float:
        if isinstance(error, ApiError) and error.status == CONFLICT:
            return FIRST_RETRY_SECONDS
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        log.warning(
            "reconcile",
            controller=self._name,
            key="/".join(key),
            error=str(error),
            exc_info=None if isinstance(error, ApiError) else error,
        )
        return min(FIRST_RETRY_SECONDS * 2.0**failures, LAST_RETRY_SECONDS)

    def _add_after(self, key: Key, seconds: float) -> None:
        if key in self._timers:
            self._timers[key].cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._fire, key)

    def _fire(self, key: Key) -> None:
        del self._timers[key]
        self.add(key)


class Stopwatch:
    """When steps began, each named by a tuple whose first element is the uid of the object it belongs to."""

    def __init__(self) -> None:
        self._begun: dict[tuple[Hashable, ...], float] = {}

    def left(self, seconds: float, *step: Hashable) -> float:
        """How many seconds of the step's duration are left; the first question begins the step. 0 when it is over."""
        now = asyncio.get_running_loop().time()
        begun = self._begun.setdefault(step, now)
        return max(0.0, begun + seconds - now)

    def forget(self, *prefix: Hashable) -> None:
        """Drops the steps whose names begin so; the next question begins them anew."""
        size = len(prefix)
        self._begun = {step: begun for step, begun in self._begun.items() if step[:size] != prefix}


class Pauses:
    """Growing pauses between attempts at what is refused, by the uid of the object that it is for."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._refusals: dict[str, int] = {}

    def longer(self, uid: str) -> float:
        """Seconds until the next attempt, twice as many as before up to a limit."""
        refusals = self._refusals[uid] = self._refusals.get(uid, 0) + 1
        return self._first * 2.0 ** min(refusals - 1, LAST_DOUBLING)

    def forget(self, uid: str) -> None:
        """Begins with the first pause again."""
        self._refusals.pop(uid, None)


def soonest(*pauses: float | None) -> float | None:
    """The shortest of the pauses that are set."""
    return min((pause for pause in pauses if pause is not None), default=None)
