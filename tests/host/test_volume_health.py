"""Health on a real kernel: file systems that become read-only, shut down, find errors or hang; disks that fail."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from kubevirt_csi.domain.health import Reason, Severity
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.operations.usage import VolumeUsage
from kubevirt_csi.ports.host import FileSystemUsage, Finding
from tests.host.conftest import Plugin
from tests.host.fuse import hanging
from tests.host.machine import MIB, run
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


async def look(plugin: Plugin, target: Path) -> Finding:
    return await plugin.usage.at(str(target), volume_id="pvc-1")


def reasons(found: Finding) -> list[Reason]:
    return [ailment.reason for ailment in found.ailments]


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_a_volume_that_works_is_normal_for_its_writer_and_its_reader(plugin: Plugin, fs_type: str) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type=fs_type, size=SMALLEST_XFS)
    for target in (await volume.publish("a"), await volume.publish("b", read_only=True), volume.staging):
        found = await look(plugin, target)
        assert isinstance(found.figures, FileSystemUsage)
        assert found.figures.total_bytes > SMALLEST_XFS // 2
        assert found.ailments == ()


async def test_a_raw_volume_that_works_is_normal(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=8 * MIB)
    target = await PodVolume(plugin, block=True).publish("a")
    assert await look(plugin, target) == Finding(figures=8 * MIB)


async def test_a_volume_that_is_mounted_read_only_on_purpose_is_normal(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    run("mkfs.ext4", "-q", "-F", str(disk.path))
    target = await PodVolume(plugin, flags=("ro",), content=Content.USED).publish("a")
    assert (await look(plugin, target)).ailments == ()


async def test_a_file_system_that_is_remounted_read_only_is_abnormal_and_normal_again_when_it_is_writable(
    plugin: Plugin,
) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    run("mount", "-o", "remount,ro", str(volume.staging))
    found = await look(plugin, target)
    assert isinstance(found.figures, FileSystemUsage)
    assert reasons(found) == [Reason.FILE_SYSTEM_READ_ONLY]
    run("mount", "-o", "remount,rw", str(volume.staging))
    assert (await look(plugin, target)).ailments == ()


async def test_an_error_in_ext4_is_told_with_its_count_and_outlives_the_mount(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    run("mount", "-o", "remount,errors=continue", str(volume.staging))
    (plugin.machine.ext4(disk) / "trigger_fs_error").write_text("1")
    found = await look(plugin, target)
    assert reasons(found) == [Reason.FILE_SYSTEM_ERRORS]
    assert found.ailments[0].severity is Severity.DEGRADED
    assert "the error count of ext4 on vdb is 1" in found.ailments[0].message
    assert "trigger_test_error" in found.ailments[0].message
    run("umount", str(target))
    run("umount", str(volume.staging))
    run("mount", str(disk.path), str(volume.staging))
    assert reasons(await look(plugin, volume.staging)) == [Reason.FILE_SYSTEM_ERRORS]


async def test_an_ext4_that_goes_read_only_after_an_error_is_abnormal(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    run("mount", "-o", "remount,errors=remount-ro", str(volume.staging))
    (plugin.machine.ext4(disk) / "trigger_fs_error").write_text("1")
    with pytest.raises(OSError, match="Read-only"):
        (target / "data").write_text("lost")
    assert set(reasons(await look(plugin, target))) == {Reason.FILE_SYSTEM_READ_ONLY, Reason.FILE_SYSTEM_ERRORS}


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_file_system_that_shut_down_is_inaccessible(plugin: Plugin, fs_type: str) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type=fs_type, size=SMALLEST_XFS)
    target = await volume.publish("a")
    run("xfs_io", "-x", "-c", "shutdown", str(volume.staging))
    found = await look(plugin, target)
    assert reasons(found)[0] is Reason.FILE_SYSTEM_SHUT_DOWN
    assert found.ailments[0].severity is Severity.INACCESSIBLE


async def test_errors_that_btrfs_has_counted_are_told(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type="btrfs", size=SMALLEST_XFS)
    target = await volume.publish("a")
    (target / "data").write_bytes(b"checked by a sum".ljust(64 * 1024, b"."))
    run("sync", "--file-system", str(target))
    await volume.unpublish("a")
    await volume.unstage()
    image = disk.image.read_bytes()
    disk.write(image.index(b"checked by a sum"), b"damaged")
    target = await PodVolume(plugin, fs_type="btrfs", content=Content.USED).publish("a")
    plugin.machine.show_btrfs(disk)
    assert (await look(plugin, target)).ailments == ()
    with pytest.raises(OSError, match="Input/output error"):
        (target / "data").read_bytes()
    found = await look(plugin, target)
    assert reasons(found) == [Reason.FILE_SYSTEM_ERRORS]
    assert "corruption_errs" in found.ailments[0].message


@pytest.mark.parametrize("block", [False, True])
async def test_a_disk_that_cannot_be_read_is_inaccessible_though_statfs_still_answers(
    plugin: Plugin, *, block: bool
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    target = await PodVolume(plugin, block=block).publish("a")
    os.sync()
    for start in (0, 32 * MIB - 4096):
        disk.read(start, 4096)  # so that it is in the page cache, which never fails
    os.truncate(disk.image, 0)
    found = await look(plugin, target)
    assert found.figures is not None
    assert reasons(found) == [Reason.IO_ERROR]
    assert "disk vdb cannot be read: Input/output error" in found.ailments[0].message


async def test_a_disk_that_was_cut_short_behind_the_nodes_back_is_inaccessible(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    target = await PodVolume(plugin).publish("a")
    os.sync()
    os.truncate(disk.image, 16 * MIB)
    assert reasons(await look(plugin, target)) == [Reason.IO_ERROR]


@pytest.mark.parametrize("fs_type", ["ext4", "btrfs", "raw"])
async def test_a_disk_that_left_while_it_was_in_use_is_inaccessible(plugin: Plugin, fs_type: str) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    block = fs_type == "raw"
    target = await PodVolume(plugin, fs_type="" if block else fs_type, block=block).publish("a")
    plugin.machine.hide(disk)
    if not block:
        disk.path.unlink()
    found = await look(plugin, target)
    assert reasons(found) == [Reason.DEVICE_GONE]
    assert found.ailments[0].severity is Severity.INACCESSIBLE


async def test_a_target_that_the_predecessor_mounted_directly_has_figures_and_health(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=UID)
    run("mkfs.ext4", "-q", "-m", "0", "-F", str(disk.path))
    volume = PodVolume(plugin, serial=UID, content=Content.USED)
    target = volume.pods / "old"
    target.mkdir()
    run("mount", str(disk.path), str(target))
    assert (await plugin.mounts.table()).top(str(volume.staging)) is None
    found = await look(plugin, target)
    assert isinstance(found.figures, FileSystemUsage)
    assert found.ailments == ()
    run("mount", "-o", "remount,errors=remount-ro", str(target))
    (plugin.machine.ext4(disk) / "trigger_fs_error").write_text("1")
    assert Reason.FILE_SYSTEM_READ_ONLY in reasons(await look(plugin, target))


def threads_looking_at(target: Path) -> int:
    return sum(thread.name == f"looking at {target}" for thread in threading.enumerate())


async def test_a_hung_file_system_costs_one_thread_and_nobody_else_an_answer(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    well = await PodVolume(plugin).publish("a")
    target = plugin.machine.folder("pods/pvc-2/a")
    usage = in_a_hurry(plugin)
    with hanging(target) as hung:
        for _ in range(3):
            found = await usage.at(str(target), volume_id="pvc-2")
            assert found.figures is None
            assert reasons(found) == [Reason.NOT_RESPONDING]
            assert threads_looking_at(target) == 1
        assert (await look(plugin, well)).ailments == ()
        hung.die()
        while threads_looking_at(target):  # noqa: ASYNC110 - a thread's end has no event
            await asyncio.sleep(0)
        found = await plugin.usage.at(str(target), volume_id="pvc-2")
        assert reasons(found) == [Reason.IO_ERROR]
        assert "Transport endpoint is not connected" in found.ailments[0].message


def in_a_hurry(plugin: Plugin) -> VolumeUsage:
    """The same with less patience."""
    patient = plugin.usage
    return VolumeUsage(
        mounts=patient._mounts,
        places=patient._places,
        usage=patient._usage,
        health=patient._health,
        records=patient._records,
        answer_seconds=0.05,
    )
