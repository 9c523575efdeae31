"""Real programs as child processes: started, watched, and surely ended.

Each program runs in a process group of its own with its output in a log file, and dies with its parent
(``PR_SET_PDEATHSIG``, set by util-linux's setpriv), so that even a killed test run leaves nothing behind.
A process is not tied to the event loop that started it: pidfds are read by whichever loop waits, so a fixture of a
whole test session can be used by tests that each have their own loop. Nothing here knows Kubernetes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

READY_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
TAIL_BYTES = 4096

Probe = Callable[[], Awaitable[bool]]
Pause = Callable[[float], Awaitable[None]]


class ProcessError(Exception):
    """A program did not start, was not ready in time, or ended when nobody had asked it to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: ``environment`` is added to ours, ``log`` receives stdout and stderr (appended)."""

    name: str
    argv: Sequence[str]
    log: Path
    environment: Mapping[str, str] | None = None
    directory: Path | None = None


class Process:
    """One running program, made by `start`."""

    def __init__(self, program: Program, popen: subprocess.Popen[bytes]) -> None:
        self.program = program
        self.stopping = False
        self._popen = popen

    @classmethod
    def start(cls, program: Program) -> Self:
        """Spawns the program; readiness is asked for with `ready`.

        Raises:
            ProcessError: the program cannot be executed.
        """
        program.log.parent.mkdir(parents=True, exist_ok=True)
        with program.log.open("ab") as log:
            try:
                popen = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *program.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | dict(program.environment or {}),
                    cwd=program.directory,
                    process_group=0,
                )
            except OSError as error:
                raise ProcessError(f"{program.name}: cannot run {program.argv[0]}: {error}") from error
        return cls(program, popen)

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log(self) -> Path:
        return self.program.log

    @property
    def alive(self) -> bool:
        """Whether it still runs; looks without reaping, so that the group can be ended first."""
        if self._popen.returncode is not None:
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def log_tail(self) -> str:
        """The last lines of its log, for an error text."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    async def wait(self) -> int:
        """Returns the exit code when the program has ended, after ending what is left of its group."""
        if self._popen.returncode is None:
            await _readable(os.pidfd_open(self.pid))
        if self._popen.returncode is None:  # nobody else reaped it meanwhile
            self.signal_group(signal.SIGKILL)
            self._popen.wait()
        return self._popen.returncode

    async def ready(
        self,
        probe: Probe,
        *,
        deadline_seconds: float = READY_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        pause: Pause = asyncio.sleep,
    ) -> None:
        """Returns as soon as the probe says true.

        Raises:
            ProcessError: the program ended first, or the deadline passed; the text has the end of its log.
        """
        try:
            async with asyncio.timeout(deadline_seconds):
                while self.alive:
                    if await probe():
                        return
                    await pause(poll_seconds)
        except TimeoutError as error:
            raise ProcessError(
                f"{self.name} (pid {self.pid}) was not ready after {deadline_seconds:g} s; "
                f"end of {self.log}:\n{self.log_tail()}"
            ) from error
        raise await self.death()

    async def death(self) -> ProcessError:
        """Waits for the end and describes it."""
        code = await self.wait()
        return ProcessError(f"{self.name} (pid {self.pid}) ended with {code}; end of {self.log}:\n{self.log_tail()}")

    def signal_group(self, number: signal.Signals) -> None:
        """Sends the signal to the program and its children; no error when all of them are gone."""
        if self._popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def stop(self, *, grace_seconds: float = STOP_SECONDS) -> int:
        """SIGTERM, and SIGKILL after the grace; returns the exit code. Ended already is not an error."""
        self.stopping = True
        self.signal_group(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                return await self.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """SIGKILL to the whole group, and reaps it; returns the exit code."""
        self.stopping = True
        self.signal_group(signal.SIGKILL)
        return await self.wait()


async def run_to_end(program: Program, *, seconds: float) -> None:
    """Runs a program that ends by itself.

    Raises:
        ProcessError: it failed, or did not end in time and was killed.
    """
    process = Process.start(program)
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError as error:
        raise ProcessError(f"{program.name} did not end within {seconds:g} s: {process.log_tail()}") from error
    finally:
        await process.kill()
    if code != 0:
        raise ProcessError(f"{program.name} ended with {code}: {process.log_tail()}")


async def _readable(descriptor: int) -> None:
    """Waits until the descriptor is readable, then closes it: a pidfd becomes readable when its process ends."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class Processes:
    """Programs that live together: ended in reverse order of their start when the block is left.

    ``end_seconds`` is what each gets for an orderly end then.
    """

    def __init__(self, *, end_seconds: float = STOP_SECONDS) -> None:
        self._running: dict[str, Process] = {}
        self._end_seconds = end_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_all()

    def __getitem__(self, name: str) -> Process:
        return self._running[name]

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._running.values()))

    async def start(
        self, program: Program, *, ready: Probe | None = None, deadline_seconds: float = READY_SECONDS
    ) -> Process:
        """Starts the program under its name, and waits for its readiness when a probe is given.

        Raises:
            ProcessError: the name is taken by a running program; else see `Process.start` and `Process.ready`.
        """
        if program.name in self._running:
            raise ProcessError(f"{program.name} runs already, as pid {self._running[program.name].pid}")
        process = Process.start(program)
        self._running[program.name] = process
        if ready is not None:
            await process.ready(ready, deadline_seconds=deadline_seconds)
        return process

    async def stop(self, name: str, *, grace_seconds: float = STOP_SECONDS) -> int:
        """Stops one program and forgets it, so that it can be started again; returns its exit code."""
        code = await self._running[name].stop(grace_seconds=grace_seconds)
        del self._running[name]
        return code

    async def kill(self, name: str) -> int:
        """Kills one program and forgets it, so that it can be started again; returns its exit code."""
        code = await self._running[name].kill()
        del self._running[name]
        return code

    async def stop_all(self) -> None:
        """Stops what runs, the latest first."""
        for name in reversed(list(self._running)):
            await self.stop(name, grace_seconds=self._end_seconds)

    async def watch(self, *, poll_seconds: float = 0.5, pause: Pause = asyncio.sleep) -> NoReturn:
        """Looks at every program, those started later too, until one ends that nobody stopped.

        Raises:
            ProcessError: which one, its exit code and the end of its log.
        """
        while True:
            for process in self:
                if not process.stopping and not process.alive:
                    raise await process.death()
            await pause(poll_seconds)
