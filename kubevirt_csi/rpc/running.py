"""The mutations that run now, one a volume, each in a task of its own.

A sidecar's deadline or its death does not stop a mutation: half an attach is worse than a finished one nobody waits
for. The retry that follows joins it when it asks for the same, and is turned away with Aborted when it asks for
something else on that volume. This is a courtesy within one process; the state that two replicas agree on is in the
API objects.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from kubevirt_csi import errors
from kubevirt_csi.observe import context

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kubevirt_csi.rpc.mutations import Mutation

log = structlog.get_logger(__name__)

CANCEL_TIMEOUT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Running:
    """A mutation at work: its task, what it has reported, and which calls wait for it."""

    mutation: Mutation
    work: context.Work
    task: asyncio.Task[Any]
    calls: int = 0
    """How many calls have waited for it so far; the first one started it."""
    waiting_calls: int = 0

    async def result(self, *, timeout: float | None) -> Any:
        """The reply, or its error; TimeoutError when it takes longer than ``timeout`` seconds, and it goes on then.

        Raises:
            TimeoutError: not done in time.
            errors.Unavailable: the mutation was stopped because the driver shuts down.
            Exception: whatever the mutation raised.
        """
        self.calls += 1
        self.waiting_calls += 1
        try:
            await asyncio.wait({self.task}, timeout=timeout)
        finally:
            self.waiting_calls -= 1
        if not self.task.done():
            raise TimeoutError
        if self.task.cancelled():
            raise errors.Unavailable(
                f"{self.mutation} of volume {self.mutation.volume} was stopped: the driver shuts down"
            )
        return self.task.result()


class RunningMutations:
    """Starts mutations, lets equal ones join, and can be drained."""

    def __init__(self, *, counted: Callable[[int], None] = lambda _count: None) -> None:
        """``counted`` is told how many run, whenever that changes."""
        self._by_volume: dict[str, Running] = {}
        self._counted = counted

    def join_or_start(self, mutation: Mutation, *, start: Callable[[], Coroutine[Any, Any, Any]]) -> Running:
        """The running mutation that equals this one, else a new one made by ``start``.

        Raises:
            errors.Aborted: another mutation of this volume runs; the text names it and what it waits for.
        """
        running = self._by_volume.get(mutation.volume)
        if running is None:
            return self._start(mutation, start)
        if running.mutation == mutation:
            return running
        waiting = f", still waiting for {running.work.waiting_for}" if running.work.waiting_for else ""
        raise errors.Aborted(
            f"volume {mutation.volume}: {running.mutation} is still running{waiting}; {mutation} has to wait, try again"
        )

    async def drain(self) -> None:
        """Returns when no mutation runs. Bound it from outside."""
        while self._by_volume:
            await asyncio.wait({running.task for running in self._by_volume.values()})

    async def cancel(self) -> None:
        """Stops what still runs and gives it a moment to clean up; a retry finds the state in the API or on disk."""
        tasks = {running.task for running in self._by_volume.values()}
        for running in self._by_volume.values():
            log.warning(
                "mutation cut short by shutdown", mutation=str(running.mutation), volume_id=running.mutation.volume
            )
            running.task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_SECONDS)

    def _start(self, mutation: Mutation, start: Callable[[], Coroutine[Any, Any, Any]]) -> Running:
        work = context.Work()
        task_context = copy_context()
        task_context.run(context.begin, work)
        task = asyncio.get_running_loop().create_task(
            start(), name=f"{mutation} {mutation.volume}", context=task_context
        )
        running = Running(mutation=mutation, work=work, task=task)
        self._by_volume[mutation.volume] = running
        self._counted(len(self._by_volume))
        task.add_done_callback(lambda _task: self._ended(running), context=task_context)
        return running

    def _ended(self, running: Running) -> None:
        del self._by_volume[running.mutation.volume]
        self._counted(len(self._by_volume))
        # Retrieved here, so that asyncio does not complain about an error that no caller waited for.
        error = None if running.task.cancelled() else running.task.exception()
        if running.waiting_calls == 0:
            log.info(
                "mutation ended without a caller",
                mutation=str(running.mutation),
                volume_id=running.mutation.volume,
                error=None if error is None else str(error),
            )
