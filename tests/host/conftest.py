"""Fixtures of the host tier: real kernel, loop devices, mkfs and mount; needs root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from kubevirt_csi.host.commands import Commands
from kubevirt_csi.host.disks import SysfsDisks
from kubevirt_csi.host.filesystems import HostFilesystems
from kubevirt_csi.host.mounts import HostMounts
from kubevirt_csi.host.places import HostPlaces
from kubevirt_csi.host.records import HostRecords
from kubevirt_csi.host.resizing import HostResizing
from kubevirt_csi.host.trimming import HostTrimmer
from kubevirt_csi.host.usage import HostUsage
from kubevirt_csi.operations.formatting import Formatting
from kubevirt_csi.operations.growing import Growing
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.publishing import Publishing
from kubevirt_csi.operations.staging import Staging
from kubevirt_csi.operations.trimming import Trimming
from kubevirt_csi.operations.unstaging import Unstaging
from kubevirt_csi.operations.usage import VolumeUsage
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
    """The real runner, which also remembers what it ran."""

    def __init__(self) -> None:
        super().__init__(search_path=os.environ["PATH"])
        self.ran: list[tuple[str, ...]] = []

    async def _run(self, argv):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as in the base
        self.ran.append(tuple(argv))
        return await super()._run(argv)

    def _run_in_thread(self, argv):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as in the base
        self.ran.append(tuple(argv))
        return super()._run_in_thread(argv)

    def made(self) -> list[str]:
        """The mkfs programs that ran."""
        return [argv[0] for argv in self.ran if argv[0].startswith("mkfs")]


@dataclass(frozen=True, slots=True)
class Plugin:
    """The node's operations on the machine's real adapters."""

    machine: machines.Machine
    commands: CountingCommands
    disks: SysfsDisks
    filesystems: HostFilesystems
    mounts: HostMounts
    records: HostRecords
    staging: Staging
    growing: Growing
    unstaging: Unstaging
    trimmer: HostTrimmer
    trimming: Trimming
    publishing: Publishing
    usage: VolumeUsage
    health: VolumeHealth


async def start_plugin(machine: machines.Machine) -> Plugin:
    """Starts the node's operations, as the process would."""
    commands = CountingCommands()
    places = HostPlaces()
    disks = SysfsDisks(sysfs_root=machine.sysfs, dev_root=machine.dev)
    filesystems = HostFilesystems(commands)
    mounts = HostMounts(commands, places=places, workspace=machine.state / "mounts")
    records = HostRecords(machine.state / "volumes")
    health = VolumeHealth()
    await mounts.open()
    formatting = Formatting(filesystems=filesystems, records=records)
    trimmer = HostTrimmer(commands)
    growing = Growing(
        disks=disks,
        filesystems=filesystems,
        mounts=mounts,
        places=places,
        records=records,
        resizing=HostResizing(commands, sysfs_root=machine.sysfs),
        health=health,
        size_wait_seconds=0.3,
    )
    trimming = Trimming(disks=disks, mounts=mounts, records=records, trimmer=trimmer)
    staging = Staging(
        disks=disks,
        formatting=formatting,
        growing=growing,
        mounts=mounts,
        places=places,
        records=records,
        disk_wait_seconds=0.2,
    )
    unstaging = Unstaging(
        disks=disks,
        formatting=formatting,
        mounts=mounts,
        places=places,
        records=records,
        trimming=trimming,
        release_seconds=0.3,
    )
    return Plugin(
        machine=machine,
        commands=commands,
        disks=disks,
        filesystems=filesystems,
        mounts=mounts,
        records=records,
        staging=staging,
        growing=growing,
        unstaging=unstaging,
        trimmer=trimmer,
        trimming=trimming,
        publishing=Publishing(
            staging=staging, trimming=trimming, disks=disks, mounts=mounts, places=places, records=records
        ),
        usage=VolumeUsage(
            mounts=mounts,
            places=places,
            usage=HostUsage(sysfs_root=machine.sysfs, dev_root=machine.dev),
            health=health,
            records=records,
        ),
        health=health,
    )


@pytest_asyncio.fixture
async def plugin(machine: machines.Machine) -> AsyncIterator[Plugin]:
    """The node plug-in of the machine."""
    yield await start_plugin(machine)
