"""Which disks are formatted, which are refused, and that a refused disk keeps every byte. Real devices, real mkfs."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import DriverError, FailedPrecondition, Unavailable
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, PluggedDisk, run
from tests.host.volumes import SERIAL, PodVolume

BLOCK = 4096
EXT4_MAGIC_AT = 1024 + 0x38


def blocks(disk: PluggedDisk) -> dict[int, bytes]:
    """Every block that is not zero, by its place; holes are passed over, because most of a disk is one."""
    found: dict[int, bytes] = {}
    position = 0
    with disk.image.open("rb") as image:
        while True:
            try:
                position = os.lseek(image.fileno(), position, os.SEEK_DATA)
            except OSError:
                return found
            end = os.lseek(image.fileno(), position, os.SEEK_HOLE)
            for at in range(position, end, BLOCK):
                block = os.pread(image.fileno(), BLOCK, at)
                if block.strip(b"\0"):
                    found[at] = block
            position = end


async def refuse(
    volume: PodVolume, disk: PluggedDisk, *, match: str, error: type[DriverError] = FailedPrecondition
) -> None:
    """Staging and publishing fail with these words, and not one byte of the disk changes."""
    before = blocks(disk)
    for attempt in (volume.stage, lambda: volume.publish("a")):
        with pytest.raises(error, match=match):
            await attempt()
    assert blocks(disk) == before
    assert volume.plugin.commands.made() == []
    assert volume.plugin.machine.mounts_below() == []


async def test_an_ext4_whose_magic_was_damaged_is_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    run("mkfs.ext4", "-q", "-F", str(disk.path))
    disk.write(EXT4_MAGIC_AT, b"\0\0")
    await refuse(PodVolume(plugin), disk, match="its (first|last) MiB is not zero")


async def test_a_partition_table_is_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    entry = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\0\0\0", 2048, 8192)
    disk.write(446, entry)
    disk.write(510, b"\x55\xaa")
    await refuse(PodVolume(plugin), disk, match="dos signature")


@pytest.mark.parametrize("offset", [0, MIB - 1, 63 * MIB, 64 * MIB - 1], ids=["first", "MiB", "last MiB", "last"])
async def test_one_byte_at_an_edge_is_enough_to_refuse(plugin: Plugin, offset: int) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=64 * MIB)
    disk.write(offset, b"\1")
    await refuse(PodVolume(plugin), disk, match="its (first|last) MiB is not zero")


async def test_a_disk_smaller_than_promised_is_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=64 * MIB)
    await refuse(PodVolume(plugin, size=64 * MIB + 512), disk, match="smaller than the 67109376 bytes")


async def test_a_disk_smaller_than_promised_is_mounted_when_it_has_a_file_system(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=64 * MIB)
    await PodVolume(plugin).stage()
    await PodVolume(plugin).unstage()
    await PodVolume(plugin, size=128 * MIB).stage()


async def test_a_volume_with_a_source_is_never_formatted(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    await refuse(PodVolume(plugin, content=Content.SOURCE), disk, match="snapshot or a clone")


async def test_a_used_volume_is_formatted_when_all_of_it_is_zero(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=37 * MIB)
    await PodVolume(plugin, content=Content.USED).stage()
    assert plugin.commands.made() == ["mkfs.ext4"]


async def test_a_used_volume_with_one_byte_in_its_middle_is_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=37 * MIB)
    disk.write(36 * MIB - 1, b"\1")
    await refuse(PodVolume(plugin, content=Content.USED), disk, match="has been used before")


async def test_a_volume_that_was_used_raw_on_this_node_counts_as_used(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    await PodVolume(plugin, block=True).stage()
    disk.write(20 * MIB + 5000, b"\1")
    again = PodVolume(await start_plugin(plugin.machine))
    await refuse(again, disk, match="has been used before")


async def test_an_operators_override_formats_what_was_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    disk.write(0, b"\1")
    await refuse(PodVolume(plugin, override="yes"), disk, match="format-override=" + SERIAL)
    await PodVolume(plugin, override=SERIAL).stage()
    assert plugin.commands.made() == ["mkfs.ext4"]


async def test_two_disks_with_one_serial_are_refused_and_both_are_named(plugin: Plugin) -> None:
    first, second = plugin.machine.plug("vdb", serial=SERIAL), plugin.machine.plug("vdc", serial=SERIAL)
    await refuse(PodVolume(plugin), first, match=r"vdb .*vdc")
    assert blocks(first) == blocks(second) == {}


async def test_a_volume_whose_disk_is_not_here_waits_and_then_says_what_was_seen(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial="another")
    await refuse(PodVolume(plugin), disk, match=r"Disks seen: .*vdb \(serial another, bus virtio", error=Unavailable)


async def test_a_name_that_goes_to_another_disk_while_it_is_open_is_noticed(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    (shown,) = await plugin.disks.all()
    async with plugin.disks.opened(shown) as device:
        plugin.machine.set_serial(disk, "another")
        with pytest.raises(Unavailable, match="became"):
            await device.verify()
        disk.path.unlink()
        disk.path.write_bytes(bytes(MIB))
        with pytest.raises(Unavailable, match="is not the device node"):
            await device.write_mark("pvc-1")


async def test_a_disk_that_is_mounted_cannot_be_marked(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    run("mkfs.ext4", "-q", str(disk.path))
    (shown,) = await plugin.disks.all()
    run("mount", str(disk.path), str(plugin.machine.folder("elsewhere")))
    async with plugin.disks.opened(shown) as device:
        assert await device.in_use()
        with pytest.raises(FailedPrecondition, match="in use"):
            await device.write_mark("pvc-1")


async def test_a_dirty_ext4_is_repaired_and_a_broken_one_is_not_mounted(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin, content=Content.USED)
    run("mkfs.ext4", "-q", str(disk.path))
    run("debugfs", "-w", "-R", "set_super_value state 2", str(disk.path))
    await volume.stage()
    await volume.unstage()
    run("debugfs", "-w", "-R", "clri <2>", str(disk.path))
    run("debugfs", "-w", "-R", "set_super_value state 2", str(disk.path))
    with pytest.raises(FailedPrecondition, match="not safe to repair"):
        await volume.stage()
    assert plugin.machine.mounts_below() == []
    assert plugin.commands.made() == []


@pytest.mark.parametrize("program", ["mkfs.ext4", "blkid"])
async def test_a_missing_program_is_named_and_nothing_is_mounted(plugin: Plugin, tmp_path: Path, program: str) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in {"blkid", "mkfs.ext4", "mount", "umount"} - {program}:
        (tools / name).symlink_to(run("which", name).strip())
    plugin.commands._environment["PATH"] = str(tools)
    with pytest.raises(DriverError, match=f"{program} is missing"):
        await PodVolume(plugin).stage()
    assert plugin.machine.mounts_below() == []
