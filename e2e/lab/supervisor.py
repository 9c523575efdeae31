"""Pid 1 of a lab: starts everything in order, watches it, tells how it goes in the state file, and ends it.

The lab ends by SIGTERM, by its lifeline (see `e2e.lab.isolation`), or because a program ended that should not have.
Either way what runs is stopped in the reverse order of its start; should that fail, the end of this process takes
all the others with it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from e2e.lab.assembly import Assembly
from e2e.lab.isolation import KEEP
from e2e.lab.recorder import Recorder
from e2e.lab.state import LabDirectory


async def supervise(directory: LabDirectory, *, machines: str, clusters: str) -> int:
    """Runs the lab until it is told to end; returns the exit code, 1 when it failed.

    Args:
        directory: of the lab.
        machines: the kind of the tenant's nodes.
        clusters: ``both``, or ``management`` for its control plane alone.
    """
    lifeline = await _standard_input()
    orders: dict[str, Any] = json.loads(await lifeline.readline())
    recorder = Recorder(directory, launcher=orders["launcher"], init=orders["init"], machines=machines)
    start = partial(_start, machines=machines, clusters=clusters, orders=orders)
    lab = asyncio.create_task(_run(directory, recorder, start=start))
    end = _once(recorder, lab)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    watcher = asyncio.create_task(_hold(lifeline, end))
    try:
        await lab
    except asyncio.CancelledError:
        recorder.ended(None)
        return 0
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the person at the terminal is told
        recorder.ended(error)
        return 1
    finally:
        watcher.cancel()
        await asyncio.to_thread(directory.clear)
    return 0


async def _run(directory: LabDirectory, recorder: Recorder, *, start: Callable[..., Awaitable[None]]) -> None:
    """Starts the lab and stays as long as it runs: the group's tasks end by failing or by being cancelled."""
    directory.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        group.create_task(recorder.refresh())
        await start(directory=directory, recorder=recorder, stack=stack, group=group)
        recorder.ready()


async def _start(*, machines: str, clusters: str, orders: Mapping[str, Any], **parts: Any) -> None:
    """Starts what the lab was asked to be, out of the parts of its assembly."""
    if clusters == "management":
        await Assembly(**parts).start_management_only()
    elif machines == "loop":
        from e2e.lab.loopnodes import LoopAssembly  # noqa: PLC0415 - costs time, which a lab without machines has not

        await LoopAssembly(**parts).start_loop()
    elif machines == "none":
        from e2e.lab.machineless import MachinelessAssembly  # noqa: PLC0415 - as above

        await MachinelessAssembly(**parts).start_machineless(durations=orders["durations"], audit=orders["audit"])
    else:
        await Assembly(**parts).start_both(orders["image"])


def _once(recorder: Recorder, lab: asyncio.Task[None]) -> Callable[[], None]:
    """What ends the lab, the first time it is called; a second signal must not interrupt the orderly end."""

    def end() -> None:
        if not recorder.stopping:
            recorder.stop()
            lab.cancel()

    return end


async def _hold(lifeline: asyncio.StreamReader, end: Callable[[], None]) -> None:
    """Ends the lab when the lifeline closes without the word that lets the lab live on."""
    if await lifeline.readline() != KEEP:
        end()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader
