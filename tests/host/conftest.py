"""Fixtures of the host tier: real kernel, loop devices, mkfs and mount; needs root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kubevirt_csi.host.commands import Commands
from kubevirt_csi.node import worker
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.node import NodeOperations, Waits
from kubevirt_csi.ports.host import Disks, Host
from tests.host import machine as machines


@pytest.fixture(scope="session", autouse=True)
def private_mount_namespace() -> None:
    """Nothing that a test mounts is seen outside, and a killed test leaves no mount."""
    if os.geteuid() != 0:
        pytest.skip("the host tier makes loop devices and mounts: it needs root")
    machines.enter_private_mount_namespace()


@pytest.fixture
def machine() -> Iterator[machines.Machine]:
    """A worker node, below a short path: those of Unix sockets are."""
    with tempfile.TemporaryDirectory(prefix="node-") as folder, machines.machine(Path(folder) / "n") as made:
        yield made


class CountingCommands(Commands):
    """The real runner, which also remembers what it ran, and lets something happen in between."""

    def __init__(self) -> None:
        super().__init__(search_path=os.environ["PATH"])
        self.ran: list[tuple[str, ...]] = []
        self._happening: dict[str, Callable[[], object]] = {}

    def once_after(self, program: str, happens: Callable[[], object]) -> None:
        """Lets it happen when the program has run for the next time."""
        self._happening[program] = happens

    async def _run(self, argv):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as in the base
        self.ran.append(tuple(argv))
        result = await super()._run(argv)
        if argv[0] in self._happening:
            self._happening.pop(argv[0])()
        return result

    def _run_in_thread(self, argv, fds=()):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as in the base
        self.ran.append(tuple(argv))
        return super()._run_in_thread(argv, fds)

    def made(self) -> list[str]:
        """The mkfs programs that ran."""
        return [argv[0] for argv in self.ran if argv[0].startswith("mkfs")]


class Plugin(NodeOperations):
    """The node's operations on the machine's real adapters."""

    def __init__(self, machine: machines.Machine, commands: CountingCommands, host: Host) -> None:
        self.machine = machine
        self.commands = commands
        self.disks = host.disks
        self.filesystems = host.filesystems
        self.mounts = host.mounts
        self.records = host.records
        self.trimmer = host.trimmer
        super().__init__(host, health=VolumeHealth(), waits=Waits(disk=0.2, size=0.3, release=0.3))


async def start_plugin(machine: machines.Machine, *, disks: Disks | None = None) -> Plugin:
    """Starts the node's operations, as the process would; ``disks`` in place of its own."""
    commands = CountingCommands()
    host = await worker(commands, sysfs_root=machine.sysfs, dev_root=machine.dev, state_dir=machine.state)
    return Plugin(machine, commands, host if disks is None else replace(host, disks=disks))


@pytest_asyncio.fixture
async def plugin(machine: machines.Machine) -> AsyncIterator[Plugin]:
    """The node plug-in of the machine."""
    yield await start_plugin(machine)
