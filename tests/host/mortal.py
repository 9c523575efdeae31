"""The node plug-in as a process that can be killed at any change it makes, and started again on the same machine.

Its PATH has one folder, in which every program of this machine has a stand-in that counts (``killing/program``); its
own changes count too (``killing/sitecustomize``). As in a pod with bidirectional propagation, its mounts below
kubelet's folder are the node's and outlive it; all its others end with it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from grpclib.client import Channel

from e2e.cache import cache_root
from e2e.lab.processes import Process, Program
from kubevirt_csi._csi.csi import v1 as csi
from tests.host.machine import Machine, run

REPOSITORY = Path(__file__).parents[2]
KILLING = Path(__file__).parent / "killing"
START = "import sys; sys.modules['rich'] = None; from kubevirt_csi.cli import main; sys.exit(main())"
BYTE_CODE = str(cache_root() / "byte-code")
POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Where the plug-in dies: at the change with this number (from 1), before it, within it or after it.

    ``within`` is for programs, which are killed too after ``cut`` seconds.
    """

    point: int
    moment: str
    cut: float = 0.0

    def __str__(self) -> str:
        return f"{self.moment} change {self.point}" + (f" after {self.cut * 1000:g} ms" if self.cut else "")


NEVER = Kill(point=0, moment="before")


class Desk:
    """The folder through which the plug-in's programs and its own functions are told when to kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir(parents=True)
        for place in os.environ["PATH"].split(os.pathsep):
            for program in Path(place).glob("*"):
                with suppress(FileExistsError):
                    (self.programs / program.name).symlink_to(KILLING / "program")
        self._plan(NEVER, "nobody")

    def arm(self, kill: Kill, *, volume_id: str) -> None:
        """Begins to count changes; programs that ran before are forgotten."""
        self._plan(kill, volume_id)
        (self.folder / "points").write_text("")
        (self.folder / "calls").unlink(missing_ok=True)

    def disarm(self) -> None:
        """Nobody is killed any more. Calls are noted all the same."""
        (self.folder / "points").unlink(missing_ok=True)

    def points(self) -> list[str]:
        """The changes since ``arm``."""
        return (self.folder / "points").read_text().splitlines()

    def calls(self) -> list[list[str]]:
        """The programs that really ran since ``arm``."""
        return [line.split(" ") for line in (self.folder / "calls").read_text().splitlines()]

    def _plan(self, kill: Kill, volume_id: str) -> None:
        lines = {
            "point": str(kill.point),
            "moment": kill.moment,
            "cut": str(kill.cut),
            "owner": volume_id,
            "PATH": os.environ["PATH"],
        }
        text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in lines.items())
        (self.folder / "plan").write_text(text)


class MortalPlugin:
    """One plug-in after another on one machine. One that is not ``counted`` is as it is in production."""

    def __init__(self, machine: Machine, *, counted: bool = True) -> None:
        self.machine = machine
        self._counted = counted
        self.desk = Desk(machine.root / "desk")
        self.starts = 0
        self._socket = machine.kubelet / "plugins" / "csi.kubevirt.io" / "csi.sock"
        self._process: Process | None = None
        (machine.kubelet / "plugins_registry").mkdir()
        run("mount", "--bind", str(machine.kubelet), str(machine.kubelet))
        run("mount", "--make-shared", str(machine.kubelet))

    async def start(self) -> None:
        """Returns when it serves."""
        self.starts += 1
        self._process = Process.start(self._program())
        await self._process.ready(self._serves, poll_seconds=POLL_SECONDS)

    async def compile(self) -> None:
        """Starts it once and ends it: then its byte code is there, as in an image, and costs later starts no memory."""
        await self.start()
        await self.end()

    async def dead(self) -> bool:
        """Whether somebody has killed it; reaps it then."""
        assert self._process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await self._process.wait()
                return True
        return False

    async def end(self) -> None:
        """Kills it."""
        if self._process is not None:
            await self._process.kill()

    @asynccontextmanager
    async def node(self) -> AsyncIterator[csi.NodeStub]:
        """Its Node service."""
        async with Channel(path=str(self._socket)) as channel:
            yield csi.NodeStub(channel)

    def resident_mib(self) -> float:
        """Its memory."""
        return int(self._status("VmRSS").removesuffix(" kB")) / 1024

    def processor_seconds(self) -> float:
        """What it has used of the processor, itself and in the kernel."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _status(self, name: str) -> str:
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))

    def mounts_of_its_own(self) -> list[str]:
        """What is mounted below its state folder, which only itself sees."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/mountinfo").read_text().splitlines()
        return [point for point in (line.split(" ")[4] for line in lines) if point.startswith(f"{self.machine.state}/")]

    def _program(self) -> Program:
        kubelet = self.machine.kubelet
        return Program(
            name="node",
            argv=[
                *("unshare", "--mount", "--propagation", "unchanged"),
                *("env", *(self._environment() if self._counted else ())),
                *(sys.executable, "-c", START, "node", "--node-id=ns/vm1"),
                f"--endpoint=unix://{self._socket}",
                f"--kubelet-dir={kubelet}",
                f"--state-dir={self.machine.state}",
                f"--sysfs-root={self.machine.sysfs}",
                f"--dev-root={self.machine.dev}",
                "--http-address=127.0.0.1:0",
                "--grace-period=1",
            ],
            log=self.machine.root / "node.log",
            # Hundreds of starts: with compiled byte code, wherever the environment would not have it written.
            environment={"PYTHONASYNCIODEBUG": "", "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": BYTE_CODE},
            directory=REPOSITORY,
        )

    def _environment(self) -> tuple[str, ...]:
        return f"PATH={self.desk.programs}", f"PYTHONPATH={KILLING}", f"KILL_POINTS={self.desk.folder}"

    async def _serves(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self._socket))
            except OSError:
                return False
        return True
