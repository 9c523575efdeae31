"""Calls into the kernel that may hang for ever: each in a daemon thread, under a deadline.

A dead disk makes statvfs, fsync and read wait without end, and nothing can interrupt them. asyncio's own thread pool
would lose a worker to each, and the end of the process would wait for them. Here a thread that hangs is replaced by a
new one, and some of those that are done wait for the next call, since a mount takes thirty of them. A thread that is
given up keeps its arguments, so it must open and close its files itself: a file number that the caller closes may be
another file's next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TypeVar

from kubevirt_csi.errors import Unavailable

T = TypeVar("T")

IDLE_THREADS = 4
"""So many threads wait for a next call; what comes at once beyond that has a thread for that call only."""

# What the idle threads wait at, whichever event loop they work for next.
_idle: list[SimpleQueue[Callable[[], None]]] = []


async def call(function: Callable[[], T], *, what: str, timeout: float) -> T:
    """Runs the function in a thread and returns its result or raises its exception.

    Args:
        function: blocks; gets its arguments by closure.
        what: for error texts, as in "reading /dev/sdb".
        timeout: seconds to wait.

    Raises:
        Unavailable: it did not return in time (it goes on, and nobody sees its result), or raised an OSError.
    """
    future = start(function, what=what)
    try:
        async with asyncio.timeout(timeout):
            return await future
    except TimeoutError as error:
        raise Unavailable(f"{what} did not finish within {timeout:g} s; does its device still answer?") from error
    except OSError as error:
        raise Unavailable(f"{what}: {error}") from error


def start(function: Callable[[], T], *, what: str) -> asyncio.Future[T]:
    """Starts the function in a daemon thread; the future gets its result or its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        current_thread().name = what
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it is carried over to the caller, whatever it is
            settle = partial(_fail, future, error)
        else:
            settle = partial(_succeed, future, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle)

    _hand_over(run)
    return future


def _hand_over(work: Callable[[], None]) -> None:
    try:
        waiting = _idle.pop()
    except IndexError:
        waiting = SimpleQueue()
        Thread(target=_do_what_comes, args=(waiting,), daemon=True).start()
    waiting.put(work)


def _do_what_comes(waiting: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        waiting.get()()
        current_thread().name = "idle"
        if len(_idle) >= IDLE_THREADS:
            return
        _idle.append(waiting)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
