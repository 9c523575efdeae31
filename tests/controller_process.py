"""The controller role as a running program, for tests of whatever stands behind it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_SECONDS = 30


class Role:
    """The running program: its socket, its port and its log."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path) -> None:
        self.process = process
        self.socket = socket
        self.port = 0

    async def log_line(self, event: str) -> dict[str, Any]:
        """The next line of the log with this event."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self.process.stdout:
                found: dict[str, Any] = json.loads(line)
                if found["event"] == event:
                    return found
        raise AssertionError(f"the program ended without {event!r}")

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def controller(tmp_path: Path, kubeconfig: Path, *, namespace: str = "tenant-a") -> AsyncIterator[Role]:
    """Runs it with its own port, and kills it at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kubevirt_csi",
        "controller",
        f"--endpoint=unix://{tmp_path}/csi.sock",
        f"--infra-cluster-namespace={namespace}",
        "--infra-cluster-labels=csi.kubevirt.io/cluster=tenant-a",
        f"--infra-cluster-kubeconfig={kubeconfig}",
        "--http-address=127.0.0.1:0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    role = Role(process, tmp_path / "csi.sock")
    try:
        role.port = (await role.log_line("serving http"))["port"]
        await role.log_line("serving")
        yield role
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until_ready(role: Role) -> None:
    """Returns when its caches follow the cluster."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await role.get("/readyz"))[0] != 200:  # noqa: ASYNC110 - another process becomes ready
            await asyncio.sleep(0.1)
