"""Runs inside a guest: passes each TCP connection on to a Unix socket, so that this side can call the node plugin.

It must know nothing but a port and a path (its arguments), and needs only the standard library. A socket that nobody
serves closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK_BYTES = 64 * 1024


async def relay(port: int, path: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            answers, requests = await asyncio.open_unix_connection(path)
            with contextlib.closing(requests):
                await asyncio.wait(
                    [asyncio.create_task(_copy(reader, requests)), asyncio.create_task(_copy(answers, writer))],
                    return_when=asyncio.FIRST_COMPLETED,
                )

    server = await asyncio.start_server(connected, "0.0.0.0", port)  # noqa: S104 - a guest's only network is the host
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(relay(int(sys.argv[1]), sys.argv[2]))
