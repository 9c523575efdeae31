"""Formats that were cut off: what a killed mkfs, or a node that lost power in it, leaves is formatted again.

Nothing that mkfs does may reach the mark, and whatever part of mkfs's writes reached the disk, in whatever order, the
mark is what the next attempt goes by. So mkfs runs once, and its writes are put onto fresh disks in part.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.host.devices import MARK_BYTES
from kubevirt_csi.host.mkfs import command
from kubevirt_csi.host.superblocks import HEAD_BYTES, found_in
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, PluggedDisk, run
from tests.host.test_formats import FILE_SYSTEMS, the_disk
from tests.host.test_never_format_by_accident import blocks, refuse
from tests.host.tracing import kill_at, stops_of
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

MKFS = {fs_type: f"mkfs.{fs_type}" for fs_type in FILE_SYSTEMS}
SOUND = {"ext4": ("fsck.ext4", "-f", "-n"), "xfs": ("xfs_repair", "-n"), "btrfs": ("btrfs", "check", "--readonly")}


def type_of(disk: PluggedDisk) -> str:
    return run("blkid", "-p", "-s", "TYPE", "-o", "value", str(disk.path)).strip()


async def marked(plugin: Plugin, size: int) -> PluggedDisk:
    """A disk on which a format was started for the volume."""
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=size)
    async with plugin.disks.opened(await the_disk(plugin)) as device:
        await device.write_mark("pvc-1")
    return disk


@pytest.mark.parametrize(
    ("fs_type", "size", "options"),
    [
        pytest.param("ext4", 8, (), id="ext4, smallest"),
        pytest.param("ext4", 129, ("-i", "67108864"), id="ext4, mark where a group begins"),
        pytest.param("ext4", 385, ("-i", "67108864"), id="ext4, mark where a group begins with a superblock"),
        pytest.param("ext4", 2049, ("-i", "67108864"), id="ext4, mark where a group of groups begins"),
        pytest.param("ext4", 2056, (), id="ext4, last group alone"),
        pytest.param("xfs", 300, (), id="xfs, smallest"),
        pytest.param("xfs", 2056, ("-d", "agcount=7"), id="xfs, odd groups"),
        pytest.param("btrfs", 110, (), id="btrfs, smallest"),
        pytest.param("btrfs", 2056, ("-n", "65536", "-d", "dup"), id="btrfs, all twice"),
    ],
)
async def test_the_mark_outlives_mkfs_so_that_it_covers_all_of_it(
    plugin: Plugin, fs_type: str, size: int, options: tuple[str, ...]
) -> None:
    disk = await marked(plugin, size * MIB)
    shown = await the_disk(plugin)
    async with plugin.disks.opened(shown) as device:
        await plugin.filesystems.make(shown, fs_type, options=options)
        await device.flush()
        assert await device.read_mark() == "pvc-1"
        await device.erase_mark("pvc-1")
        assert await device.read_mark() is None
    run(*SOUND[fs_type], str(disk.path))


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
@pytest.mark.parametrize("order", ["as they lie", "backwards", "shuffled"])
async def test_whatever_part_of_mkfs_reached_the_disk_it_is_formatted_again_on_another_node(
    plugin: Plugin, fs_type: str, order: str
) -> None:
    disk = await marked(plugin, SMALLEST_XFS)
    await plugin.filesystems.make(await the_disk(plugin), fs_type)
    written = list(blocks(disk).items())
    mark = next(entry for entry in written if entry[0] == SMALLEST_XFS - MIB)
    written.remove(mark)
    if order == "backwards":
        written.reverse()
    elif order == "shuffled":
        random.Random(fs_type).shuffle(written)  # noqa: S311 - the same order each time
    for part in (1, len(written) // 3, len(written) - 1):
        plugin.machine.unplug(disk)
        disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
        for at, block in (*written[:part], mark):
            disk.write(at, block)
        other = await start_plugin(plugin.machine)
        volume = PodVolume(other, fs_type=fs_type, content=Content.USED)
        await volume.stage()
        (volume.staging / "file").write_text("kept")
        await volume.unstage()
        await volume.stage()
        assert (volume.staging / "file").read_text() == "kept"
        assert other.commands.made() == [MKFS[fs_type]]
        await volume.unstage()
        run(*SOUND[fs_type], str(disk.path))


def mkfs_of(disk: Disk, fs_type: str) -> tuple[str, ...]:
    """As the plugin runs it, with the disk's name in the place of its file descriptor."""
    return command(disk.path, fs_type, (), size_bytes=disk.size_bytes)


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_a_mkfs_that_is_killed_at_any_of_its_system_calls_is_repeated(plugin: Plugin, fs_type: str) -> None:
    disk = await marked(plugin, SMALLEST_XFS)
    last = stops_of(mkfs_of(await the_disk(plugin), fs_type)) - 1
    for eighth in range(1, 8):  # the number of calls varies a little where there are threads
        plugin.machine.unplug(disk)
        disk = await marked(plugin, SMALLEST_XFS)
        kill_at(last * eighth // 8, mkfs_of(await the_disk(plugin), fs_type))
        volume = PodVolume(plugin, fs_type=fs_type, content=Content.USED)
        await volume.stage()
        await volume.unstage()
        run(*SOUND[fs_type], str(disk.path))
    assert plugin.commands.made() == [MKFS[fs_type]] * 7


@pytest.mark.parametrize("begun", FILE_SYSTEMS)
@pytest.mark.parametrize("wanted", FILE_SYSTEMS)
async def test_what_a_cut_off_mkfs_left_is_gone_when_another_type_is_made(
    plugin: Plugin, begun: str, wanted: str
) -> None:
    disk = await marked(plugin, SMALLEST_XFS)
    await plugin.filesystems.make(await the_disk(plugin), begun)
    volume = PodVolume(plugin, fs_type=wanted, content=Content.USED)
    await volume.stage()
    assert type_of(disk) == wanted
    head = disk.read(0, HEAD_BYTES)
    assert [block.fs_type for block in found_in(head)] == [wanted]
    assert disk.read(SMALLEST_XFS - MIB, MARK_BYTES) == bytes(MARK_BYTES)


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_a_mkfs_that_was_cut_off_before_its_disk_grew_is_repeated(plugin: Plugin, fs_type: str) -> None:
    disk = await marked(plugin, SMALLEST_XFS)
    await plugin.filesystems.make(await the_disk(plugin), fs_type)
    plugin.machine.grow(disk, 2 * SMALLEST_XFS)
    plugin.commands.ran.clear()
    volume = PodVolume(plugin, fs_type=fs_type, size=SMALLEST_XFS)
    await volume.stage()
    assert plugin.commands.made() == [MKFS[fs_type]]
    async with plugin.disks.opened(await the_disk(plugin)) as device:
        assert await device.read_mark() is None
        assert await device.read_mark(of_size=SMALLEST_XFS) is None
    await volume.unstage()
    run(*SOUND[fs_type], str(disk.path))


async def test_the_mark_of_another_volume_does_not_cover_a_file_system(plugin: Plugin) -> None:
    await marked(plugin, SMALLEST_XFS)
    await plugin.filesystems.make(await the_disk(plugin), "ext4")
    plugin.commands.ran.clear()
    await PodVolume(plugin, volume_id="pvc-2").stage()
    assert plugin.commands.made() == []


@pytest.mark.parametrize("found", FILE_SYSTEMS)
@pytest.mark.parametrize("wanted", FILE_SYSTEMS)
async def test_another_type_than_the_one_asked_for_is_refused_and_both_are_named(
    plugin: Plugin, found: str, wanted: str
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    await PodVolume(plugin, fs_type=found).stage()
    await PodVolume(plugin).unstage()
    plugin.commands.ran.clear()
    volume = PodVolume(plugin, fs_type=wanted, override=SERIAL)
    if found == wanted:
        await volume.stage()
    else:
        await refuse(volume, disk, match=f"of type {found}, but {wanted} was asked for")


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_a_cancelled_stage_lets_mkfs_end_and_the_next_one_finds_no_half_file_system(
    plugin: Plugin, tmp_path: Path, fs_type: str
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    go, started, real = tmp_path / "go", tmp_path / "started", run("which", MKFS[fs_type]).strip()
    run("mkfifo", str(go), str(started))
    slow = tmp_path / MKFS[fs_type]
    slow.write_text(f'#!/bin/sh\necho > {started}\nread line < {go}\nexec {real} "$@"\n')
    slow.chmod(0o755)
    path = plugin.commands._environment["PATH"]
    plugin.commands._environment["PATH"] = f"{tmp_path}:{path}"
    volume = PodVolume(plugin, fs_type=fs_type)
    staging = asyncio.create_task(volume.stage())
    await asyncio.to_thread(started.read_text)
    staging.cancel()
    await asyncio.to_thread(go.write_text, "\n")
    with pytest.raises(asyncio.CancelledError):
        await staging
    assert type_of(disk) == fs_type
    assert plugin.machine.mounts_below() == []
    plugin.commands._environment["PATH"] = path
    await volume.stage()
    assert plugin.commands.made() == [MKFS[fs_type]] * 2


async def test_an_override_takes_off_what_mkfs_would_leave(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    disk.write(510, b"\x55\xaa")
    disk.write(446 + 4, b"\x83\0\0\0\0\x08\0\0\0\x08\0\0")
    disk.write(0x200000, b"SKUL\xba\xbe\0\2" + (0x200000).to_bytes(8, "big"))
    await refuse(PodVolume(plugin), disk, match="signature|not zero")
    await PodVolume(plugin, override=SERIAL).stage()
    assert type_of(disk) == "ext4"
