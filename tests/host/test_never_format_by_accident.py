"""Which disks are formatted, which are refused, and that a refused disk keeps every byte. Real devices, real mkfs."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import DriverError, FailedPrecondition, Unavailable
from kubevirt_csi.host.devices import MARK_BYTES, OpenDevice
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, PluggedDisk, run
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

EXT4_MAGIC_AT = 1024 + 0x38


def digest(disk: PluggedDisk) -> str:
    return hashlib.sha256(disk.image.read_bytes()).hexdigest()


async def refuse(
    volume: PodVolume, disk: PluggedDisk, *, match: str, error: type[DriverError] = FailedPrecondition
) -> None:
    """Staging and publishing fail with these words, and not one byte of the disk changes."""
    before = digest(disk)
    for attempt in (volume.stage, lambda: volume.publish("a")):
        with pytest.raises(error, match=match):
            await attempt()
    assert digest(disk) == before
    assert volume.plugin.commands.made() == []
    assert volume.plugin.machine.mounts_below() == []


async def test_an_ext4_whose_magic_was_damaged_is_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    run("mkfs.ext4", "-q", "-F", str(disk.path))
    disk.write(EXT4_MAGIC_AT, b"\0\0")
    await refuse(PodVolume(plugin), disk, match="first or last MiB is not zero")


async def test_a_partition_table_is_refused(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    entry = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\0\0\0", 2048, 8192)
    disk.write(446, entry)
    disk.write(510, b"\x55\xaa")
    await refuse(PodVolume(plugin), disk, match="dos signature")


@pytest.mark.parametrize(
    ("kind", "offset", "magic"),
    [
        pytest.param("swap", 4086, b"SWAPSPACE2", id="swap"),
        pytest.param("btrfs", 64 * 1024 + 0x40, b"_BHRfS_M", id="btrfs"),
        pytest.param("crypto_LUKS|not zero", 0, b"LUKS\xba\xbe\0\1", id="LUKS"),
    ],
)
async def test_what_belongs_to_something_else_is_refused(plugin: Plugin, kind: str, offset: int, magic: bytes) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    disk.write(offset, magic)
    await refuse(PodVolume(plugin), disk, match=f"{kind}|first or last MiB is not zero")


@pytest.mark.parametrize("offset", [0, MIB - 1, 63 * MIB, 64 * MIB - 1], ids=["first", "MiB", "last MiB", "last"])
async def test_one_byte_at_an_edge_is_enough_to_refuse(plugin: Plugin, offset: int) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=64 * MIB)
    disk.write(offset, b"\1")
    await refuse(PodVolume(plugin), disk, match="first or last MiB is not zero")


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
    disk.write(20 * MIB, b"\1")
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
    assert digest(first) == digest(second)


async def test_a_volume_whose_disk_is_not_here_waits_and_then_says_what_was_seen(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial="another")
    await refuse(PodVolume(plugin), disk, match=r"Disks seen: .*vdb \(serial another\)", error=Unavailable)


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_format_that_was_cut_off_is_done_again(plugin: Plugin, fs_type: str) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    (shown,) = await plugin.disks.all()
    async with plugin.disks.opened(shown) as device:
        await device.write_mark("pvc-1")
        await plugin.filesystems.make(shown, fs_type)
    plugin.commands.ran.clear()
    volume = PodVolume(plugin, fs_type="ext4", content=Content.USED)
    await volume.stage()
    assert plugin.commands.made() == ["mkfs.ext4"]
    assert disk.read(SMALLEST_XFS - MIB, MARK_BYTES) == bytes(MARK_BYTES)
    await volume.stage()
    assert plugin.commands.made() == ["mkfs.ext4"]


async def test_the_mark_of_another_volume_does_not_cover_a_file_system(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    (shown,) = await plugin.disks.all()
    async with plugin.disks.opened(shown) as device:
        await device.write_mark("pvc-1")
        await plugin.filesystems.make(shown, "ext4")
    plugin.commands.ran.clear()
    await PodVolume(plugin, volume_id="pvc-2").stage()
    assert plugin.commands.made() == []


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
@pytest.mark.parametrize("size", [SMALLEST_XFS, 2048 * MIB + 8 * MIB], ids=["small", "last group alone"])
async def test_the_mark_outlives_mkfs_so_that_it_covers_all_of_it(plugin: Plugin, fs_type: str, size: int) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=size)
    (shown,) = await plugin.disks.all()
    async with plugin.disks.opened(shown) as device:
        assert isinstance(device, OpenDevice)
        await device.write_mark("pvc-1")
        await plugin.filesystems.make(shown, fs_type)
        await device.flush()
        assert await device.read_mark() == "pvc-1"
        await device.erase_mark("pvc-1")
        assert await device.read_mark() is None
    if fs_type == "ext4":
        run("fsck.ext4", "-f", "-n", str(shown.path))
    else:
        run("xfs_repair", "-n", str(shown.path))


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
