"""The one place that runs programs: without a shell, under a deadline, killed and reaped, with bounded output.

A program that changes a disk (mkfs, fsck) is run by ``run_to_end`` instead: it has no deadline, and a cancelled caller
waits for it all the same, because half a file system is worse than a late answer. Its session is its own, so that a
signal meant for the driver's process group does not reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.host import blocking

log = structlog.get_logger(__name__)

OUTPUT_LIMIT_BYTES = 64 * 1024
TELL_AFTER_SECONDS = 60.0
"""How often a program without a deadline is mentioned in the log while it runs."""

_TEXT_LIMIT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A program that has ended by itself. ``code`` is negative when a signal ended it."""

    argv: tuple[str, ...]
    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        said = " ".join((self.errors.strip() or self.output.strip()).split())[-_TEXT_LIMIT:]
        return f"{self.argv[0]} ended with {self.code}: {said or 'no output'}"


class Commands:
    """Runs programs found on the given search path; they see no other environment."""

    def __init__(self, *, search_path: str) -> None:
        self._environment = {"LC_ALL": "C", "PATH": search_path}

    def missing(self, *programs: str) -> tuple[str, ...]:
        """Those of the programs that are not on the search path."""
        return tuple(p for p in programs if shutil.which(p, path=self._environment["PATH"]) is None)

    async def run(self, *argv: str, timeout: float = 60.0) -> Finished:
        """Runs a program to its end or to its deadline (seconds), after which its process group is killed and reaped.

        Any exit code is a result, not an error.

        Raises:
            Internal: the program is missing or cannot be started.
            Unavailable: the deadline passed; what the program did until then is unknown.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._run(argv)
        except TimeoutError as error:
            raise Unavailable(
                f"{argv[0]} did not end within {timeout:g} s and was killed (last argument: {argv[-1]})"
            ) from error

    async def run_to_end(self, *argv: str, fds: Sequence[int] = ()) -> Finished:
        """Runs a program that must not be cut in half; both its outputs are in ``output``. It inherits ``fds``.

        A cancelled caller is cancelled only after the program has ended, also at the end of the event loop, which
        cancels all tasks: that is why the program is waited for in a thread.

        Raises:
            Internal: the program is missing or cannot be started.
        """
        loop = asyncio.get_running_loop()
        finished = blocking.start(lambda: self._run_in_thread(argv, fds), what=argv[0])
        started = loop.time()
        cancelled = await _end_of(
            finished,
            tell=lambda: log.info("program still running", program=argv[0], seconds=round(loop.time() - started)),
        )
        if cancelled is not None:
            log.warning("program ended without caller", program=argv[0], failed=finished.exception() is not None)
            raise cancelled
        return finished.result()

    def _run_in_thread(self, argv: Sequence[str], fds: Sequence[int] = ()) -> Finished:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                pass_fds=fds,
            )
        except OSError as error:
            raise self._not_started(argv[0], error) from error
        kept = bytearray()
        with process:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            while chunk := os.read(process.stdout.fileno(), OUTPUT_LIMIT_BYTES):
                kept += chunk[: OUTPUT_LIMIT_BYTES - len(kept)]
        return Finished(argv=tuple(argv), code=process.returncode, output=kept.decode(errors="replace"), errors="")

    def _not_started(self, program: str, error: OSError) -> Internal:
        if isinstance(error, FileNotFoundError):
            return Internal(
                f"program {program} is missing in the node plugin's image (PATH {self._environment['PATH']})"
            )
        return Internal(f"program {program} cannot be started: {error}")

    async def _run(self, argv: Sequence[str]) -> Finished:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        )
        # Cancelled in the middle of its start, asyncio would kill the program but not its children, and wait for them.
        cancelled = await _end_of(starting)
        try:
            process = starting.result()
        except OSError as error:
            raise self._not_started(argv[0], error) from error
        try:
            if cancelled is not None:
                raise cancelled
            output, errors, code = await asyncio.gather(
                _bounded(process.stdout), _bounded(process.stderr), process.wait()
            )
        finally:
            if process.returncode is None:
                await _kill(process)
        return Finished(argv=tuple(argv), code=code, output=output, errors=errors)


async def _bounded(stream: asyncio.StreamReader | None) -> str:
    """Reads to the end and keeps the beginning, so that a chatty program neither blocks nor fills the memory."""
    assert stream is not None  # noqa: S101 - both streams are pipes
    kept = bytearray()
    while chunk := await stream.read(OUTPUT_LIMIT_BYTES):
        kept += chunk[: OUTPUT_LIMIT_BYTES - len(kept)]
    return kept.decode(errors="replace")


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kills the program's group and reaps the program, however often this task is cancelled meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    cancelled = await _end_of(asyncio.ensure_future(process.wait()))
    if cancelled is not None:
        raise cancelled


async def _end_of(
    future: asyncio.Future[Any], *, tell: Callable[[], None] | None = None
) -> asyncio.CancelledError | None:
    """Waits until the future is done, and returns the cancellation of this task that came meanwhile instead of ending.

    ``tell`` is called every now and then while it is not.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,), timeout=TELL_AFTER_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
        if tell is not None and not future.done():
            tell()
    return cancelled
