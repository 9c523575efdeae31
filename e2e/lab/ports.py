"""Free loopback ports that stay ours until we let go.

A port found by binding to 0 comes from the ephemeral range, where any outgoing connection may take it before its
program listens. So ports are taken below that range, and each is held by a lock file while its owner lives: labs and
test runs on one machine do not take each other's ports, and a killed one releases its locks by dying.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

FIRST, LAST = 20000, 32000
LOCKS = Path(tempfile.gettempdir()) / "kubevirt-csi-ports"


class Ports:
    """Ports of one owner, released by `close` or by the end of its process."""

    def __init__(self) -> None:
        self._locks: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self) -> int:
        """A port on which nothing listens and that no other owner holds.

        Raises:
            OSError: every port of the range is taken.
        """
        LOCKS.mkdir(exist_ok=True)
        start = random.randrange(FIRST, LAST)  # noqa: S311 - spreads owners over the range, no secret
        for port in itertools.chain(range(start, LAST), range(FIRST, start)):
            if self._lock(port):
                return port
        raise OSError(f"no free port between {FIRST} and {LAST}")

    def close(self) -> None:
        """Lets every port go. The lock files stay: removing a locked file would let two owners hold one name."""
        while self._locks:
            os.close(self._locks.pop())

    def _lock(self, port: int) -> bool:
        lock = os.open(LOCKS / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _unused(port):
                self._locks.append(lock)
                return True
        os.close(lock)
        return False


def _unused(port: int) -> bool:
    """Whether a program could listen there, on loopback or on all addresses."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT does not count
        probe.bind(("0.0.0.0", port))
        return True
    return False
