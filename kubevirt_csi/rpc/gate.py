"""The door that every call passes: counts who is inside, and once closed lets nobody in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from kubevirt_csi import errors

if TYPE_CHECKING:
    from types import TracebackType


class Gate:
    """A context manager around each call; entering a closed one raises ``errors.Unavailable``."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def close(self) -> None:
        """From now on every new call is told to come back later; those inside go on."""
        self._closed = True

    async def empty(self) -> None:
        """Returns when no call is inside. Bound it from outside."""
        await self._empty.wait()

    def __enter__(self) -> Self:
        if self._closed:
            raise errors.Unavailable("the driver is shutting down, try again")
        self._inside += 1
        self._empty.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inside -= 1
        if self._inside == 0:
            self._empty.set()
