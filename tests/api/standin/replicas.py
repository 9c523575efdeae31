"""The controller role as a process that can be killed at any time, and raw calls to it.

Its log goes to a file, because a pipe that nobody empties would bring it to a halt. Calls are bytes in and a code and
a text out: what a confused caller sends need not be a message of CSI.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from e2e.lab.processes import Process, Program
from kubevirt_csi._csi.csi import v1 as csi

TENANT = "csi.kubevirt.io/cluster=tenant-a"
PROBE_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class Replica:
    """One controller process after another on one socket."""

    name: str
    directory: Path
    """For socket and log; its path must be short."""
    kubeconfig: Path
    namespace: str
    flags: tuple[str, ...] = ()
    process: Process | None = None

    @property
    def socket(self) -> Path:
        return self.directory / f"{self.name}.sock"

    async def start(self) -> None:
        """Returns when it says that it is ready."""
        arguments = [
            f"--endpoint=unix://{self.socket}",
            f"--infra-cluster-namespace={self.namespace}",
            f"--infra-cluster-labels={TENANT}",
            f"--infra-cluster-kubeconfig={self.kubeconfig}",
            "--http-address=127.0.0.1:0",
            *self.flags,
        ]
        program = Program(
            name=self.name,
            argv=[sys.executable, "-m", "kubevirt_csi", "controller", *arguments],
            log=self.directory / f"{self.name}.log",
            environment={"PYTHONASYNCIODEBUG": ""},  # as in production
        )
        self.process = Process.start(program)
        await self.process.ready(self._is_ready)

    async def kill(self) -> None:
        """SIGKILL, and its end."""
        if self.process is not None:
            await self.process.kill()
            self.process = None

    async def _is_ready(self) -> bool:
        try:
            async with Channel(path=str(self.socket)) as channel:
                answer = await csi.IdentityStub(channel).probe(csi.ProbeRequest(), timeout=PROBE_SECONDS)
        except (OSError, TimeoutError, GRPCError, StreamTerminatedError):
            return False
        return answer.ready is True


@asynccontextmanager
async def running(replica: Replica) -> AsyncIterator[Replica]:
    """The replica, started; whatever runs on its socket at the end is killed."""
    try:
        await replica.start()
        yield replica
    finally:
        await replica.kill()


@dataclass(frozen=True, slots=True)
class Raw:
    """A message as grpclib's codec wants it, of any bytes."""

    content: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.content

    @classmethod
    def FromString(cls, content: bytes) -> Raw:  # noqa: N802 - protobuf's name
        return cls(content)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer: the code, the error's text (empty with OK), and the reply's bytes (empty with an error)."""

    code: Status
    text: str = ""
    reply: bytes = b""


async def tell(channel: Channel, method: str, content: bytes, *, seconds: float) -> Told:
    """Calls a method of the Controller service.

    Raises:
        OSError, StreamTerminatedError: the process is not there, or ended during the call.
    """
    call: UnaryUnaryMethod[Raw, Raw] = UnaryUnaryMethod(channel, f"/csi.v1.Controller/{method}", Raw, Raw)
    try:
        answer = await call(Raw(content), timeout=seconds)
    except GRPCError as error:
        return Told(error.status, error.message or "")
    assert answer is not None
    return Told(Status.OK, reply=answer.content)
