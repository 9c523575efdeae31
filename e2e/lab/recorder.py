"""Writes a lab's state file: the only writer of it, used by the supervisor alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NoReturn

from e2e.lab.processes import Pause, Processes
from e2e.lab.state import LabDirectory, State, Step

REFRESH_SECONDS = 1.0


class Recorder:
    """Keeps the state file equal to what goes on; steps also go to the supervisor's log (stdout)."""

    def __init__(self, directory: LabDirectory, *, launcher: int, init: int, machines: str) -> None:
        self._directory = directory
        self._start = time.monotonic()
        self._followed: list[Processes] = []
        self._state = State(status="starting", launcher=launcher, init=init, started_at=time.time(), machines=machines)
        self._write()

    def step(self, text: str) -> None:
        """Something is done, or happened."""
        step = Step(at=round(time.monotonic() - self._start, 1), text=text)
        print(f"{step.at:7.1f} s  {step.text}", flush=True)
        self._state.steps.append(step)
        self._write()

    def kubeconfig(self, name: str, path: Path) -> None:
        self._state.kubeconfigs[name] = str(path)

    def socket(self, name: str, path: Path) -> None:
        self._state.sockets[name] = str(path)

    def port(self, name: str, number: int) -> None:
        self._state.ports[name] = number

    def ready(self) -> None:
        self._state.status = "ready"
        self.step("the lab is ready")

    @property
    def stopping(self) -> bool:
        return self._state.status == "stopping"

    def stop(self) -> None:
        """The lab was asked to end."""
        self._state.status = "stopping"
        self._write()

    def ended(self, error: BaseException | None) -> None:
        """The last word: stopped when asked to, or failed and why."""
        self._state.status = "stopped" if error is None else "failed"
        self._state.error = None if error is None else reason(error)
        self._state.pids.clear()
        if self._state.error:
            print(self._state.error, flush=True)
        self._write()

    def follow(self, processes: Processes) -> None:
        """From now on the pids and logs of these programs are recorded."""
        self._followed.append(processes)

    async def refresh(self, *, pause: Pause = asyncio.sleep) -> NoReturn:
        """Keeps pids and logs up to date until cancelled: programs come, and are started again."""
        while True:
            processes = [process for collection in self._followed for process in collection]
            pids = {process.name: process.pid for process in processes}
            if pids != self._state.pids:
                self._state.pids = pids
                self._state.logs |= {process.name: str(process.log) for process in processes}
                self._write()
            await pause(REFRESH_SECONDS)

    def _write(self) -> None:
        self._directory.write(self._state)


def reason(error: BaseException) -> str:
    """The texts of an error; of a group, those of its parts."""
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(reason(part) for part in error.exceptions)
    return str(error) or repr(error)
