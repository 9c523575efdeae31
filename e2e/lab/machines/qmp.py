"""QEMU's monitor, as the few operations that a machine needs: commands with a deadline, and events that follow them.

The protocol itself is QEMU's own library. What it raises does not leave this file: callers see `MachineError`, or
`Refused` where QEMU understood the command and said no.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from qemu.qmp import EventListener, ExecuteError, QMPClient, QMPError
from qemu.qmp.protocol import Runstate

from e2e.lab.machines import MachineError

COMMAND_SECONDS = 10.0


class Refused(MachineError):
    """QEMU answered a command with an error; ``text`` is its description alone."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class Monitor:
    """A connection to the monitor of one running machine."""

    def __init__(self, vm: str, client: QMPClient) -> None:
        self._vm = vm
        self._client = client

    @classmethod
    async def connect(cls, vm: str, socket: Path) -> Self:
        """Connects and negotiates.

        Raises:
            MachineError: nobody answers on the socket.
        """
        client = QMPClient(vm)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await client.connect(str(socket))
        except (QMPError, OSError) as error:  # TimeoutError is an OSError
            raise MachineError(f"{vm}: no monitor on {socket}: {error}") from error
        return cls(vm, client)

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Runs a command and returns what it returns.

        Raises:
            Refused: QEMU answered with an error.
            MachineError: no answer within 10 s, or the connection is gone.
        """
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                return await self._client.execute(command, arguments)
        except ExecuteError as error:
            raise Refused(f"{self._vm}: QEMU refused {command}: {error}", str(error)) from error
        except (QMPError, OSError) as error:
            raise MachineError(f"{self._vm}: no answer to {command}: {error!r}") from error

    @asynccontextmanager
    async def deletion(self, device: str) -> AsyncIterator[EventListener]:
        """Listens, within the block, for the guest's release of the device; see `released`."""

        def concerns(event: Mapping[str, Any]) -> bool:
            return bool(event["data"].get("device") == device)

        with self._client.listener("DEVICE_DELETED", concerns) as listener:
            yield listener

    async def close(self) -> None:
        """Disconnects; a connection that broke is not an error."""
        if self._client.runstate is Runstate.IDLE:
            return
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await self._client.disconnect()
        except (QMPError, OSError, EOFError):
            return


async def released(listener: EventListener, *, seconds: float) -> bool:
    """Whether an event arrives at the listener within that time."""
    try:
        async with asyncio.timeout(seconds):
            await listener.get()
    except TimeoutError:
        return False
    return True
