"""Growth on real file systems: what the kernel shows of them afterwards, and the bytes that were written before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.health import Reason
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.host.commands import Commands
from kubevirt_csi.host.resizing import PROGRAMS, HostResizing
from kubevirt_csi.operations.growing import Expansion
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, Machine, PluggedDisk, run
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

SMALLEST_BTRFS = 128 * MIB
CAP_SYS_RESOURCE = 24
"""From linux/capability.h."""


def is_capable(capability: int) -> bool:
    """Whether this process may do what needs the capability."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> capability & 1)


by_ext4 = pytest.mark.skipif(
    not is_capable(CAP_SYS_RESOURCE),
    reason="the kernel lets nobody without CAP_SYS_RESOURCE grow a mounted ext4; the guest tests do it",
)
KINDS = [
    pytest.param("ext4", 64 * MIB, id="ext4", marks=by_ext4),
    pytest.param("xfs", SMALLEST_XFS, id="xfs"),
    pytest.param("btrfs", SMALLEST_BTRFS, id="btrfs"),
]
DATA = os.urandom(256 * 1024)


def expansion(path: Path, *, to: int) -> Expansion:
    return Expansion(volume_id="pvc-1", path=str(path), capacity=CapacityRange(required=to))


def span(path: Path) -> int:
    """The bytes that the mounted file system manages, less what it keeps for itself."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def plug(machine: Machine, size: int, *, bus: str = "virtio") -> PluggedDisk:
    return machine.plug("vdb" if bus == "virtio" else "sdb", serial=SERIAL, size=size, bus=bus)


@pytest.mark.parametrize(("fs_type", "size"), KINDS)
@pytest.mark.parametrize("of_pod", [True, False], ids=["pod's path", "staging path"])
async def test_a_mounted_file_system_grows_with_its_disk_and_keeps_its_bytes(
    machine: Machine, plugin: Plugin, fs_type: str, size: int, *, of_pod: bool
) -> None:
    disk = plug(machine, size)
    volume = PodVolume(plugin, fs_type=fs_type)
    await volume.stage()
    pod = await volume.publish("a")
    (pod / "data").write_bytes(DATA)
    before = span(pod)
    machine.grow(disk, 2 * size)
    assert await plugin.growing.expand(expansion(pod if of_pod else volume.staging, to=2 * size)) == 2 * size
    assert span(pod) - before > 0.8 * size
    assert await plugin.growing.expand(expansion(pod, to=2 * size)) == 2 * size  # a repeat
    await volume.unpublish("a")
    await volume.unstage()
    after = await start_plugin(machine)
    assert (await after.filesystems.superblock((await after.disks.all())[0], fs_type)).size_bytes > 2 * size - MIB
    again = PodVolume(after, fs_type=fs_type, content=Content.USED)
    await again.stage()
    assert (again.staging / "data").read_bytes() == DATA


@pytest.mark.parametrize(("fs_type", "size"), KINDS)
async def test_a_file_system_that_is_smaller_than_its_disk_fills_it_at_its_stage(
    machine: Machine, plugin: Plugin, fs_type: str, size: int
) -> None:
    disk = plug(machine, size)
    volume = PodVolume(plugin, fs_type=fs_type)
    await volume.stage()
    (volume.staging / "data").write_bytes(DATA)
    before = span(volume.staging)
    await volume.unstage()
    machine.grow(disk, 2 * size)  # as a restore into a larger claim, or a growth while it was attached nowhere
    await volume.stage()
    assert span(volume.staging) - before > 0.8 * size
    assert (volume.staging / "data").read_bytes() == DATA
    await volume.unstage()
    plugin.commands.ran.clear()
    await volume.stage()
    assert not [argv for argv in plugin.commands.ran if argv[0] in PROGRAMS]  # what fills its disk is left alone


async def test_a_raw_device_is_as_large_as_its_disk_and_keeps_its_bytes(machine: Machine, plugin: Plugin) -> None:
    disk = plug(machine, 32 * MIB)
    volume = PodVolume(plugin, block=True)
    pod = await volume.publish("a")
    disk.write(0, DATA)
    with pytest.raises(Unavailable, match=f"still had {32 * MIB}"):
        await plugin.growing.expand(expansion(pod, to=64 * MIB))
    machine.grow(disk, 64 * MIB)
    assert await plugin.growing.expand(expansion(pod, to=64 * MIB)) == 64 * MIB
    with pod.open("rb") as device:
        assert device.read(len(DATA)) == DATA
        assert device.seek(0, os.SEEK_END) == 64 * MIB


async def test_growth_waits_for_a_disk_that_is_late(machine: Machine, plugin: Plugin) -> None:
    disk = plug(machine, SMALLEST_BTRFS)
    volume = PodVolume(plugin, fs_type="btrfs")
    await volume.stage()
    expanding = asyncio.create_task(plugin.growing.expand(expansion(volume.staging, to=2 * SMALLEST_BTRFS)))
    await asyncio.sleep(0)
    machine.grow(disk, 2 * SMALLEST_BTRFS)
    assert await expanding == 2 * SMALLEST_BTRFS
    assert span(volume.staging) == 2 * SMALLEST_BTRFS


async def test_a_volume_mounted_read_only_is_left_as_it_is(machine: Machine, plugin: Plugin) -> None:
    disk = plug(machine, 64 * MIB)
    await (first := PodVolume(plugin)).stage()
    await first.unstage()
    machine.grow(disk, 128 * MIB)
    volume = PodVolume(plugin, flags=("ro",), content=Content.USED)
    await volume.stage()
    before = span(volume.staging)
    assert await plugin.growing.expand(expansion(volume.staging, to=128 * MIB)) == 128 * MIB
    assert span(volume.staging) == before < 64 * MIB


async def test_xfs_grows_although_the_pod_sees_it_read_only(machine: Machine, plugin: Plugin) -> None:
    """The kernel refuses it through a read-only mount, so another one of the same file system is taken."""
    disk = plug(machine, SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type="xfs")
    pod = await volume.publish("a", read_only=True)
    before = span(pod)
    machine.grow(disk, 2 * SMALLEST_XFS)
    await plugin.growing.expand(expansion(pod, to=2 * SMALLEST_XFS))
    assert span(pod) - before > 0.8 * SMALLEST_XFS


async def test_a_scsi_disk_is_asked_for_its_size(machine: Machine, plugin: Plugin) -> None:
    disk = plug(machine, 32 * MIB, bus="scsi")
    rescan = machine.sysfs / "block" / "sdb" / "device" / "rescan"
    rescan.touch()
    pod = await PodVolume(plugin, block=True).publish("a")
    machine.grow(disk, 64 * MIB)
    await plugin.growing.expand(expansion(pod, to=64 * MIB))
    assert rescan.read_text() == "1"


async def test_without_its_program_a_volume_is_mounted_and_its_health_and_its_growth_name_the_program(
    machine: Machine, plugin: Plugin, tmp_path: Path
) -> None:
    disk = plug(machine, 64 * MIB)
    await (first := PodVolume(plugin)).stage()
    await first.unstage()
    machine.grow(disk, 128 * MIB)
    plugin.growing._resizing = HostResizing(Commands(search_path=str(tmp_path)), sysfs_root=machine.sysfs)
    volume = PodVolume(plugin, content=Content.USED)
    await volume.stage()
    (volume.staging / "data").write_bytes(DATA)
    (ailment,) = plugin.health.of("pvc-1")
    assert ailment.reason is Reason.GROWTH_FAILED
    assert "resize2fs is missing in the node plugin's image" in ailment.message
    with pytest.raises(Internal, match="resize2fs is missing"):
        await plugin.growing.expand(expansion(volume.staging, to=128 * MIB))


async def test_a_target_that_the_predecessor_mounted_by_itself_grows(machine: Machine, plugin: Plugin) -> None:
    """It mounted the device on each target and left the staging folder empty."""
    disk = plug(machine, SMALLEST_XFS)
    run("mkfs.xfs", "-q", "-f", str(disk.path))
    target = machine.folder("pods/old")
    run("mount", "-t", "xfs", str(disk.path), str(target))
    (target / "data").write_bytes(DATA)
    before = span(target)
    machine.grow(disk, 2 * SMALLEST_XFS)
    assert await plugin.growing.expand(expansion(target, to=2 * SMALLEST_XFS)) == 2 * SMALLEST_XFS
    assert span(target) - before > 0.8 * SMALLEST_XFS
    assert (target / "data").read_bytes() == DATA
