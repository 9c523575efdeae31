"""How a gateway is told what to do, from outside the lab's namespaces: one JSON line each way on a unix socket.

The lab has namespaces of its own for processes and mounts, but its folder is the same file system inside and outside,
and so is the socket in it. An order is ``{"mode": "slow", "seconds": 2}``, ``{"close": true}``, or ``{}`` to only ask;
the answer is how the gateway is after it, or ``{"error": TEXT}``. Whoever may enter the folder may give orders.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from e2e.lab.gateway import Door, Gateway, Mode
from e2e.lab.state import LabError

ANSWER_SECONDS = 10.0
LONGEST_DELAY_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the gateway is: its door, the clients that are connected, and those that the order has thrown out."""

    door: Door
    connections: int
    closed: int = 0


@asynccontextmanager
async def listen(gateway: Gateway, path: Path) -> AsyncIterator[None]:
    """Takes orders at the path while the block runs.

    Raises:
        OSError: the path is too long for a socket (107 bytes), or in use.
    """

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await _obeyed(gateway, await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except OSError:
            pass  # who asked has gone
        finally:
            writer.close()

    server = await asyncio.start_unix_server(take, path)
    try:
        yield
    finally:
        server.close()


async def _obeyed(gateway: Gateway, line: bytes) -> Mapping[str, Any]:
    closed = 0
    try:
        order = json.loads(line)
        if "mode" in order:
            await gateway.become(_door(order))
        if order.get("close"):
            closed = await gateway.close_connections()
    except (ValueError, AttributeError, TypeError, OSError) as error:
        return {"error": str(error)}
    door = gateway.door
    return {"mode": door.mode, "seconds": door.seconds, "connections": gateway.connections, "closed": closed}


def _door(order: Mapping[str, Any]) -> Door:
    mode, seconds = order["mode"], float(order.get("seconds", 0.0))
    if mode not in get_args(Mode):
        raise ValueError(f"no door {mode!r}; there are: {', '.join(get_args(Mode))}")
    if not 0.0 <= seconds <= LONGEST_DELAY_SECONDS:
        raise ValueError(f"{seconds} seconds: from 0 to {LONGEST_DELAY_SECONDS:g}")
    return Door(mode=mode, seconds=seconds)


def ask(path: Path) -> Report:
    """How the gateway is.

    Raises:
        LabError: it does not answer.
    """
    return _send(path, {})


def tell(path: Path, door: Door) -> Report:
    """Has the gateway behave so.

    Raises:
        LabError: it does not answer, or cannot.
    """
    return _send(path, {"mode": door.mode, "seconds": door.seconds})


def close_connections(path: Path) -> Report:
    """Has the gateway close the connections that are open now.

    Raises:
        LabError: it does not answer.
    """
    return _send(path, {"close": True})


def _send(path: Path, order: Mapping[str, Any]) -> Report:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(os.fspath(path))
            connection.sendall(json.dumps(order).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline())
    except (OSError, ValueError) as error:
        raise LabError(f"the gateway at {path} does not answer ({error}); does the lab run?") from error
    if "error" in answer:
        raise LabError(f"the gateway refuses: {answer['error']}")
    door = Door(mode=answer["mode"], seconds=answer["seconds"])
    return Report(door=door, connections=answer["connections"], closed=answer["closed"])
