"""The node plug-in as a process: its sockets, its end, its memory, and a volume's life through all of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from e2e.lab.ports import Ports
from e2e.lab.processes import Process, Processes, Program
from kubevirt_csi._csi import pluginregistration
from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from tests.host.machine import MIB, Machine, run
from tests.host.volumes import SERIAL, SMALLEST_XFS

REPOSITORY = Path(__file__).parents[2]
LARGEST_MIB = 44
# As in the node's image, where rich is not installed; structlog loads it where it finds it.
START = "import sys; sys.modules['rich'] = None; from kubevirt_csi.cli import main; sys.exit(main())"
CONTEXT = PublishContext(serial=SERIAL, bus=Bus.VIRTIO, size_bytes=32 * MIB, content=Content.NONE).to_map()
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(fs_type="ext4"),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_MULTI_WRITER),
)


class NodeProcess:
    """A running plug-in, seen as kubelet and the probes see it."""

    def __init__(self, process: Process, *, machine: Machine, port: int) -> None:
        self.process = process
        self.machine = machine
        self.port = port
        self.socket = machine.kubelet / "plugins" / "csi.kubevirt.io" / "csi.sock"
        self.staging = machine.folder("staging/pvc-1")
        self.target = machine.folder("pods") / "a"

    async def status(self, page: str) -> int:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{self.port}{page}") as response:
                    return response.status
            except aiohttp.ClientError:
                return 0

    @asynccontextmanager
    async def node(self) -> AsyncIterator[csi.NodeStub]:
        async with Channel(path=str(self.socket)) as channel:
            yield csi.NodeStub(channel)

    def registration_sockets(self) -> list[Path]:
        return list((self.machine.kubelet / "plugins_registry").iterdir())

    async def register(self) -> pluginregistration.PluginInfo:
        """What kubelet does when a socket appears."""
        (path,) = self.registration_sockets()
        async with Channel(path=str(path)) as channel:
            kubelet = pluginregistration.RegistrationStub(channel)
            info = await kubelet.get_info(pluginregistration.InfoRequest())
            await kubelet.notify_registration_status(pluginregistration.RegistrationStatus(plugin_registered=True))
        return info

    def mount_points(self) -> list[str]:
        table = Path(f"/proc/{self.process.pid}/mountinfo").read_text()
        points = [line.split(" ")[4] for line in table.splitlines()]
        return [point for point in points if point.startswith(f"{self.machine.kubelet}/")]

    def inside(self, path: Path) -> Path:
        """The path in the process's own mount namespace."""
        return Path(f"/proc/{self.process.pid}/root") / path.relative_to("/")

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def program(machine: Machine, *, port: int, environment: Mapping[str, str] | None = None) -> Program:
    """The plug-in in a mount namespace of its own, pointed at the machine's disks."""
    (machine.kubelet / "plugins_registry").mkdir()
    arguments = [
        sys.executable,
        "-c",
        START,
        "node",
        "--node-id=ns/vm1",
        f"--endpoint=unix://{machine.kubelet}/plugins/csi.kubevirt.io/csi.sock",
        f"--kubelet-dir={machine.kubelet}",
        f"--state-dir={machine.state}",
        f"--sysfs-root={machine.sysfs}",
        f"--dev-root={machine.dev}",
        f"--http-address=127.0.0.1:{port}",
        "--grace-period=1",
    ]
    return Program(
        name="node",
        argv=["unshare", "--mount", *arguments],
        log=machine.root / "node.log",
        environment={"PYTHONASYNCIODEBUG": "", **(environment or {})},
        directory=REPOSITORY,
    )


@asynccontextmanager
async def running(
    machine: Machine, *, environment: Mapping[str, str] | None = None, size: int = 32 * MIB
) -> AsyncIterator[NodeProcess]:
    """The plug-in from its first answer to its end."""
    machine.plug("vdb", serial=SERIAL, size=size)
    with Ports() as ports:
        port = ports.take()
        async with Processes() as processes:
            process = await processes.start(program(machine, port=port, environment=environment))
            node = NodeProcess(process, machine=machine, port=port)

            async def registering() -> bool:
                return await node.status("/healthz") == 200 and bool(node.registration_sockets())

            await process.ready(registering)
            yield node


@pytest_asyncio.fixture
async def node(machine: Machine) -> AsyncIterator[NodeProcess]:
    async with running(machine) as node:
        yield node


async def stage(node: NodeProcess, *, fs_type: str = "ext4") -> None:
    capability = csi.VolumeCapability(
        mount=csi.VolumeCapabilityMountVolume(fs_type=fs_type), access_mode=CAPABILITY.access_mode
    )
    async with node.node() as stub:
        await stub.node_stage_volume(
            csi.NodeStageVolumeRequest(
                volume_id="pvc-1",
                staging_target_path=str(node.staging),
                volume_capability=capability,
                publish_context=CONTEXT,
            )
        )


async def test_it_is_ready_when_kubelet_has_registered_it_and_gone_after_sigterm(node: NodeProcess) -> None:
    assert await node.status("/readyz") == 503
    info = await node.register()
    assert (info.name, info.endpoint) == ("csi.kubevirt.io", str(node.socket))
    assert await node.status("/readyz") == 200
    assert await node.process.stop() == 0
    assert node.registration_sockets() == []
    assert not list(node.socket.parent.iterdir())


async def test_a_volume_lives_and_the_process_stays_small(node: NodeProcess) -> None:
    await stage(node)
    async with node.node() as stub:
        await stub.node_publish_volume(
            csi.NodePublishVolumeRequest(
                volume_id="pvc-1",
                staging_target_path=str(node.staging),
                target_path=str(node.target),
                volume_capability=CAPABILITY,
                publish_context=CONTEXT,
            )
        )
        node.inside(node.target / "data").write_text("written by a pod")
        assert node.mount_points() == [str(node.staging), str(node.target)]
        for _ in range(20):
            await stub.node_get_volume_stats(
                csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=str(node.target))
            )
        await stub.node_unpublish_volume(
            csi.NodeUnpublishVolumeRequest(volume_id="pvc-1", target_path=str(node.target))
        )
        await stub.node_unstage_volume(
            csi.NodeUnstageVolumeRequest(volume_id="pvc-1", staging_target_path=str(node.staging))
        )
    assert node.mount_points() == []
    assert node.resident_mib() <= LARGEST_MIB


async def test_what_a_killed_plugin_has_answered_is_on_the_disk_and_in_its_record(
    node: NodeProcess, machine: Machine
) -> None:
    await stage(node)
    await node.process.kill()
    assert (machine.state / "volumes" / "pvc-1.json").is_file()
    assert run("blkid", "-p", "-s", "TYPE", "-o", "value", str(machine.dev / "vdb")).strip() == "ext4"


class SlowMkfs:
    """A mkfs that says that it has begun and waits for a word before it works."""

    def __init__(self, folder: Path, fs_type: str) -> None:
        self.begun = folder / "begun"
        self._go = folder / "go"
        tools, real = folder / "tools", run("which", f"mkfs.{fs_type}").strip()
        run("mkfifo", str(self._go))
        tools.mkdir()
        slow = tools / f"mkfs.{fs_type}"
        slow.write_text(f'#!/bin/sh\necho begun >> {self.begun}\nread line < {self._go}\n{real} "$@"\n')
        slow.chmod(0o755)
        self.environment = {"PATH": f"{tools}:{run('printenv', 'PATH').strip()}"}

    async def has_begun(self) -> bool:
        return self.begun.exists()

    def go_on(self) -> None:
        self._go.write_text("\n")


async def test_a_mkfs_that_outlives_its_call_runs_once_and_its_volume_waits_for_it(
    machine: Machine, tmp_path: Path
) -> None:
    mkfs = SlowMkfs(tmp_path, "ext4")
    async with running(machine, environment=mkfs.environment) as node:
        given_up = asyncio.create_task(stage(node))
        await node.process.ready(mkfs.has_begun)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        async with node.node() as stub:
            with pytest.raises(GRPCError) as refused:
                await stub.node_unstage_volume(
                    csi.NodeUnstageVolumeRequest(volume_id="pvc-1", staging_target_path=str(node.staging))
                )
        assert refused.value.status is Status.ABORTED
        retry = asyncio.create_task(stage(node))
        mkfs.go_on()
        await retry
        assert mkfs.begun.read_text() == "begun\n"


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_a_format_under_way_at_sigterm_is_finished_before_the_process_ends(
    machine: Machine, tmp_path: Path, fs_type: str
) -> None:
    mkfs = SlowMkfs(tmp_path, fs_type)
    async with running(machine, environment=mkfs.environment, size=SMALLEST_XFS) as node:
        staging = asyncio.create_task(stage(node, fs_type=fs_type))
        await node.process.ready(mkfs.has_begun)
        end = asyncio.create_task(node.process.stop(grace_seconds=30))

        async def grace_is_over() -> bool:
            return "grace period is over" in node.process.log_tail()

        await node.process.ready(grace_is_over)
        assert node.process.alive
        mkfs.go_on()
        assert await end == 0
        with pytest.raises((GRPCError, StreamTerminatedError)):
            await staging
    assert run("blkid", "-p", "-s", "TYPE", "-o", "value", str(machine.dev / "vdb")).strip() == fs_type
