"""A guest with the driver's node role in it: a shell on one side, its CSI socket on the other.

The plugin runs as its pod has it: as root, in a mount namespace of its own whose mounts are seen on both sides, with
kubelet's folder at its usual place. Nothing here knows what is asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError

from e2e.lab.machines import MachineError
from e2e.lab.machines.agent import GuestResult
from e2e.lab.machines.qemu import QemuMachines
from kubevirt_csi._csi.csi import v1 as csi
from tests.guest.driver import PROGRAMS_LOG, RELAY, SHIMS, SITE

T = TypeVar("T")

KUBELET = Path("/var/lib/kubelet")
SOCKET = KUBELET / "plugins/csi.kubevirt.io/csi.sock"
LOG = Path("/run/node.log")
HTTP = "127.0.0.1:9808"
READY_SECONDS = 60.0
POLL_SECONDS = 0.1

_START = f"""
mkdir -p {KUBELET}/plugins_registry
export PYTHONPATH={SITE} PATH={SHIMS}:/usr/sbin:/usr/bin:/sbin:/bin
setsid /usr/bin/unshare --mount --propagation=unchanged python3 -m kubevirt_csi node --node-id=tenant/worker-1 \\
    --endpoint=unix://{SOCKET} --http-address={HTTP} --grace-period=1 < /dev/null >> {LOG} 2>&1 &
echo $!
"""
_RELAY = "setsid python3 {relay} {port} {socket} < /dev/null >> /run/relay.log 2>&1 &"


class GuestError(Exception):
    """A script in the guest failed, or something did not happen there in time."""


@dataclass(slots=True, kw_only=True)
class GuestNode:
    """The node role in a running machine; ``port`` of this side leads to its socket."""

    machines: QemuMachines
    vm: str
    port: int
    pid: int = 0
    _agent: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, script: str, *, seconds: float = 60.0) -> GuestResult:
        """Runs a shell script in the guest, whatever it returns.

        busybox's shell has its own cat, grep and the like: emulated, loading a program is most of its time.
        """
        async with self._agent:  # QEMU lets one side talk to it at a time
            return await self.machines.run(self.vm, ["busybox", "sh", "-c", script], timeout=seconds)

    async def sh(self, script: str, *, seconds: float = 60.0) -> str:
        """The output of a shell script in the guest.

        Raises:
            GuestError: it ended with another code than 0.
        """
        result = await self.run(script, seconds=seconds)
        if result.code != 0:
            raise GuestError(f"{script}\nended with {result.code} in the guest:\n{result.stdout}{result.stderr}")
        return result.stdout

    async def until(self, condition: str, *, seconds: float = 20.0) -> None:
        """Returns when the shell condition holds in the guest.

        Raises:
            GuestError: it does not within that time.
        """
        tries = int(seconds / POLL_SECONDS)
        try:
            await self.sh(
                f"for _ in $(seq {tries}); do {{ {condition}; }} && exit 0; sleep {POLL_SECONDS}; done; exit 1",
                seconds=2 * seconds + 10,
            )
        except (GuestError, MachineError) as error:
            state = await self.sh(f"ls /sys/block; tail -n 30 {LOG}; dmesg | tail -n 20")
            raise GuestError(f"not within {seconds:g} s in the guest: {condition}\n{state}") from error

    async def settled(self) -> None:
        """Returns when udev has looked at every disk: one that it has open keeps its name beyond its unplugging."""
        await self.sh("udevadm settle --timeout=30")

    async def connect(self) -> None:
        """Starts the relay between the forwarded port and the plugin's socket; once for each boot."""
        await self.sh(_RELAY.format(relay=RELAY, port=self.port, socket=SOCKET))

    async def start(self) -> None:
        """Starts the plugin and returns when it answers.

        Raises:
            GuestError: it ended, or does not answer within a minute.
        """
        self.pid = int(await self.sh(_START))
        await self.until(f"[ -S {SOCKET} ] || ! [ -e /proc/{self.pid} ]", seconds=READY_SECONDS)
        try:
            async with self.stub() as stub:
                await stub.node_get_info(csi.NodeGetInfoRequest(), timeout=READY_SECONDS)
        except (OSError, GRPCError, StreamTerminatedError) as error:  # TimeoutError is an OSError
            raise GuestError(f"the plugin does not answer in the guest: {error}\n{await self.log()}") from error

    async def kill(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer sends it."""
        await self.sh(f"kill -KILL {self.pid} && rm -f {SOCKET}")
        await self.until(f"! [ -e /proc/{self.pid} ]")

    async def log(self) -> str:
        """What the plugin has written."""
        return await self.sh(f"tail -n 100 {LOG}")

    async def made(self, device: str) -> list[str]:
        """The mkfs programs that were run on the device in this test."""
        lines = (await self.sh(f"cat {PROGRAMS_LOG} 2>/dev/null || true")).splitlines()
        return [line.split()[0] for line in lines if device in line.split()]

    async def mount_points(self) -> list[str]:
        """What is mounted below kubelet's folder, as the guest's own mount namespace sees it."""
        points = (await self.sh("cut -d' ' -f5 /proc/self/mountinfo")).split()
        return [point for point in points if point.startswith(f"{KUBELET}/")]

    async def clear(self) -> None:
        """Takes away every mount below kubelet's folder, whoever uses it, and starts a plugin that has ended."""
        mounted = f"cut -d' ' -f5 /proc/self/mountinfo | grep ^{KUBELET}/ | tac"
        await self.sh(f"{mounted} | xargs -r -n1 umount -l; rm -f {PROGRAMS_LOG}")
        if (await self.run(f"[ -e /proc/{self.pid} ]")).code != 0:
            await self.start()

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[csi.NodeStub]:
        """A connection for one call."""
        async with Channel("127.0.0.1", self.port) as channel:
            yield csi.NodeStub(channel)

    @asynccontextmanager
    async def begun(self, call: Callable[[csi.NodeStub], Coroutine[None, None, T]]) -> AsyncIterator[asyncio.Task[T]]:
        """A call that the plugin works on during the block, and that has ended after it: then ask for its result.

        A second call on the same connection comes after it, so its answer tells that the first one has arrived.
        """
        async with self.stub() as stub:
            task = asyncio.create_task(call(stub))
            try:
                await stub.node_get_info(csi.NodeGetInfoRequest(), timeout=READY_SECONDS)
                yield task
            finally:
                await asyncio.wait([task])
