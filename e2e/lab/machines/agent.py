"""Runs programs inside a guest through the QEMU guest agent, without network or kubelet.

The agent speaks JSON lines over a virtio serial port. What a host writes before the agent has opened its end is lost or
arrives late, so a conversation starts with a synchronisation that is repeated until its own answer comes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.lab.machines import MachineError

SYNC_SECONDS = 1.0
POLL_SECONDS = 0.1
DELIMITER = b"\xff"
LINE_LIMIT_BYTES = 32 * 1024**2  # output comes in one line, base64


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestResult:
    """How a program in the guest ended, and what it printed."""

    code: int
    stdout: str
    stderr: str


async def run_in_guest(vm: str, socket: Path, argv: Sequence[str], *, seconds: float) -> GuestResult:
    """Runs the program in the guest and returns its result; waits for the guest's userspace first.

    Raises:
        MachineError: the agent did not answer, could not run the program, or the program did not end in time.
    """
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=LINE_LIMIT_BYTES)
            try:
                await _synchronise(reader, writer)
                return await _run(vm, reader, writer, argv)
            finally:
                writer.close()
                with suppress(OSError):  # how the other side goes is nobody's concern
                    await writer.wait_closed()
    except TimeoutError as error:
        raise MachineError(f"{vm}: {' '.join(argv)} did not end in the guest within {seconds:g} s") from error
    except (OSError, EOFError, ValueError) as error:
        raise MachineError(f"{vm}: cannot talk to the guest agent on {socket}: {error}") from error


async def _synchronise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        token = secrets.randbelow(2**31)
        writer.write(DELIMITER + _line("guest-sync-delimited", id=token))
        await writer.drain()
        try:
            async with asyncio.timeout(SYNC_SECONDS):
                while True:
                    await reader.readuntil(DELIMITER)
                    if json.loads(await reader.readline()).get("return") == token:
                        return
        except TimeoutError:
            continue


async def _run(vm: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, argv: Sequence[str]) -> GuestResult:
    async def call(command: str, **arguments: Any) -> dict[str, Any]:
        writer.write(_line(command, **arguments))
        await writer.drain()
        answer = json.loads(await reader.readline())
        if "error" in answer:
            raise MachineError(f"{vm}: guest agent refused to run {argv[0]}: {answer['error'].get('desc')}")
        result: dict[str, Any] = answer["return"]
        return result

    arguments = {"path": argv[0], "arg": list(argv[1:]), "capture-output": True}
    pid = (await call("guest-exec", **arguments))["pid"]
    while not (status := await call("guest-exec-status", pid=pid))["exited"]:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(POLL_SECONDS)
    return GuestResult(
        code=status["exitcode"] if "exitcode" in status else -status["signal"],
        stdout=_text(status.get("out-data", "")),
        stderr=_text(status.get("err-data", "")),
    )


def _line(command: str, **arguments: Any) -> bytes:
    return json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")
