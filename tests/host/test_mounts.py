"""Mounts that went wrong, on a real kernel: corrupt, stale, covered, misnamed; and the data is there after all."""

from __future__ import annotations

import os
import struct

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import FailedPrecondition
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, PluggedDisk, lose, run
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume


def replug(plugin: Plugin, disk: PluggedDisk, name: str) -> None:
    """The disk leaves under its mounts, and comes back under another name and number."""
    plugin.machine.unplug(disk)
    plugin.machine.plug(name, serial=SERIAL, image=disk.image)


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_volume_that_answers_with_io_errors_is_unpublished_unstaged_and_staged_again(
    plugin: Plugin, fs_type: str
) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type=fs_type)
    await volume.stage()
    target = await volume.publish("a")
    (target / "data").write_text("written before")
    lose(target)
    with pytest.raises(OSError, match="Input/output error"):
        (target / "more").write_text("")
    await volume.unpublish("a")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []
    assert not target.exists()
    assert (await volume.publish("b") / "data").exists()


@pytest.mark.parametrize("name_is_taken", [False, True], ids=["name free", "name given to another disk"])
async def test_a_volume_whose_disk_came_back_under_another_number_is_mounted_anew(
    plugin: Plugin, name_is_taken: bool
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    (target / "data").write_text("written before")
    os.sync()
    replug(plugin, disk, "vdc")
    if name_is_taken:
        (plugin.machine.root / "other.img").write_bytes(bytes(MIB))
        plugin.machine.plug("vdb", serial="another", image=plugin.machine.root / "other.img")
    again = PodVolume(await start_plugin(plugin.machine), content=Content.USED)
    assert await again.publish("a") == target
    assert (target / "data").read_text() == "written before"
    table = await again.plugin.mounts.table()
    back = next(shown for shown in await again.plugin.disks.all() if shown.name == "vdc")
    assert {entry.device for path in (volume.staging, target) for entry in table.at(str(path))} == {back.number}
    assert again.plugin.commands.made() == []


async def test_a_raw_volume_whose_number_another_disk_has_now_is_bound_anew(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=8 * MIB)
    volume = PodVolume(plugin, block=True)
    target = await volume.publish("a")
    plugin.machine.unplug(disk)
    plugin.machine.plug("vdd", serial="another")  # takes the number: the pod would read and write another volume
    plugin.machine.plug("vdc", serial=SERIAL, image=disk.image)
    await volume.publish("a")
    assert target.stat().st_rdev == (plugin.machine.dev / "vdc").stat().st_rdev
    assert len(plugin.machine.mounts_below()) == 1


async def test_a_stale_mount_that_is_still_used_is_left_where_it_is(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    with (target / "data").open("w"):
        replug(plugin, disk, "vdc")
        with pytest.raises(FailedPrecondition, match="still uses it"):
            await volume.publish("a")
        assert str(target) in plugin.machine.mounts_below()


async def test_an_xfs_whose_log_cannot_be_replayed_is_not_mounted_and_the_way_out_is_told(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type="xfs", content=Content.USED)
    run("mkfs.xfs", "-q", str(disk.path))
    folder = plugin.machine.folder("elsewhere")
    run("mount", str(disk.path), str(folder))
    for number in range(600):
        (folder / str(number)).write_text("a")
        if number % 100 == 0:  # many records: damage in the last few counts as a write that was cut off
            os.sync()
    lose(folder)
    run("umount", str(folder))
    disk.write(first_log_record(disk) + 4096, os.urandom(64))
    with pytest.raises(FailedPrecondition, match=r"take a snapshot.*xfs_repair -n"):
        await volume.stage()
    assert plugin.machine.mounts_below() == []
    assert plugin.commands.made() == []


def first_log_record(disk: PluggedDisk) -> int:
    """Where the first long record of the log is: xlog_rec_header in the kernel's xfs_log_format.h."""
    log = int(run("xfs_db", "-r", "-c", "sb 0", "-c", "p logstart", str(disk.path)).split("=")[1])
    blocks, bits = (
        int(run("xfs_db", "-r", "-c", "sb 0", "-c", f"p {name}", str(disk.path)).split("=")[1])
        for name in ("agblocks", "agblklog")
    )
    start = ((log >> bits) * blocks + (log & ((1 << bits) - 1))) * 4096
    content = disk.read(start, 4 * MIB)
    for at in range(0, len(content), 512):
        magic, length = content[at : at + 4], struct.unpack(">I", content[at + 12 : at + 16])[0]
        if magic == b"\xfe\xed\xba\xbe" and length > 16 * 1024:
            return start + at
    raise AssertionError("the log has no long record")


async def test_btrfs_shows_a_number_of_its_own_and_is_told_to_be_the_disks_all_the_same(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    run("mkfs.btrfs", "-q", str(disk.path))
    volume = PodVolume(plugin, fs_type="btrfs", content=Content.USED)
    for _ in range(2):
        await volume.stage()
        target = await volume.publish("a")
        await volume.publish("b", read_only=True)
        (target / "data").write_text("on the disk")
    assert len(plugin.machine.mounts_below()) == 3
    with pytest.raises(FailedPrecondition, match="still mounted at"):
        await volume.unstage()
    await volume.unpublish("a")
    await volume.unpublish("b")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []


async def test_a_staging_folder_that_holds_something_is_not_covered(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    (volume.staging / "data").write_text("written to the node's own disk")
    with pytest.raises(FailedPrecondition, match="not empty"):
        await volume.publish("a")
    assert plugin.machine.mounts_below() == []
    assert (volume.staging / "data").read_text() == "written to the node's own disk"


async def test_a_staging_folder_that_was_lost_is_made_again(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    volume.staging.rmdir()
    await volume.publish("a")
    assert len(plugin.machine.mounts_below()) == 2


async def test_a_file_in_place_of_a_raw_device_is_bound_over_only_when_it_is_empty(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=8 * MIB)
    volume = PodVolume(plugin, block=True)
    (volume.pods / "a").touch()
    assert (await volume.publish("a")).is_block_device()
    (volume.pods / "b").write_text("written to the node's own disk")
    with pytest.raises(FailedPrecondition, match="not empty"):
        await volume.publish("b")


async def test_missing_targets_and_empty_leftovers_are_no_error(plugin: Plugin) -> None:
    volume = PodVolume(plugin)
    await volume.unpublish("never")
    (volume.pods / "folder").mkdir()
    (volume.pods / "file").touch()
    for pod in ("folder", "file"):
        await volume.unpublish(pod)
        await volume.unpublish(pod)
    assert list(volume.pods.iterdir()) == []
    volume.staging.rmdir()
    await volume.unstage()


@pytest.mark.parametrize("name", ["line\u2028separator", "form\ffeed", os.fsdecode(b"no \xff text"), "back\\slash"])
async def test_what_pods_call_their_folders_does_not_keep_others_from_their_volumes(plugin: Plugin, name: str) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    (target / name).mkdir()
    subpath = plugin.machine.folder("subpath")
    run("mount", "--bind", str(target / name), str(subpath))
    elsewhere = plugin.machine.kubelet / name
    elsewhere.mkdir()
    run("mount", "--bind", str(target), str(elsewhere))
    await volume.publish("b")
    await volume.unpublish("a")
    await volume.unpublish("b")
    with pytest.raises(FailedPrecondition, match="still mounted at") as refused:
        await volume.unstage()
    assert str(refused.value).encode()
    run("umount", str(subpath))
    run("umount", str(elsewhere))
    await volume.unstage()
