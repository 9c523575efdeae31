"""Volumes that the predecessor mounted, on a real kernel: they serve on, are shared, grown, ended, proven released."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import FailedPrecondition
from kubevirt_csi.operations.growing import Expansion
from kubevirt_csi.ports.host import FileSystemUsage
from tests.host.conftest import Plugin
from tests.host.machine import MIB, lose, run
from tests.host.test_growing import by_ext4
from tests.host.volumes import SMALLEST_XFS, PodVolume

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"
"""A serial of the predecessor."""


@pytest.mark.parametrize("fs_type", [pytest.param("ext4", marks=by_ext4), "xfs"])
async def test_a_volume_that_the_predecessor_mounted_has_its_whole_life_with_us(plugin: Plugin, fs_type: str) -> None:
    disk = plugin.machine.plug("sdb", serial=UID, size=SMALLEST_XFS, bus="scsi")
    run(f"mkfs.{fs_type}", str(disk.path))
    volume = PodVolume(plugin, serial=UID, content=Content.USED, fs_type=fs_type)
    target = volume.pods / "old"
    target.mkdir()
    run("mount", str(disk.path), str(target))  # the staging folder stays empty
    (target / "data").write_text("older")

    before = await plugin.usage.at(str(target), volume_id="pvc-1")
    plugin.machine.grow(disk, SMALLEST_XFS + 64 * MIB)
    grown = await plugin.growing.expand(
        Expansion(volume_id="pvc-1", path=str(target), capacity=CapacityRange(required=SMALLEST_XFS + 64 * MIB))
    )
    after = await plugin.usage.at(str(target), volume_id="pvc-1")
    assert grown == SMALLEST_XFS + 64 * MIB
    assert isinstance(before.figures, FileSystemUsage)
    assert isinstance(after.figures, FileSystemUsage)
    assert after.figures.total_bytes - before.figures.total_bytes > 32 * MIB
    assert (before.ailments, after.ailments) == ((), ())

    assert (await volume.publish("new") / "data").read_text() == "older"
    await volume.unpublish("old")
    assert not target.exists()
    with pytest.raises(FailedPrecondition, match="pods/pvc-1/new"):
        await volume.unstage()
    await volume.unpublish("new")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []
    assert plugin.commands.made() == []


async def test_a_target_of_the_predecessor_serves_on_without_the_options_that_it_ignored(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=UID)
    run("mkfs.ext4", "-q", "-m", "0", "-F", str(disk.path))
    volume = PodVolume(plugin, serial=UID, content=Content.USED, flags=("noexec", "discard"))
    target = plugin.machine.folder("pods/pvc-1/old")
    run("mount", str(disk.path), str(target))
    for _ in range(2):
        await volume.stage()
        assert await volume.publish("old") == target
    new = await volume.publish("new")
    table = await plugin.mounts.table()
    assert [entry.options for entry in table.at(str(target))] == [{"rw", "relatime"}]
    assert [entry.options for entry in table.at(str(new))] == [{"rw", "relatime", "noexec"}]


async def test_a_raw_target_of_the_predecessor_serves_on_and_ends(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=UID, size=8 * MIB)
    volume = PodVolume(plugin, serial=UID, content=Content.USED, block=True)
    target = volume.pods / "old"
    target.touch()
    run("mount", "--bind", str(disk.path), str(target))
    await volume.publish("old")
    await volume.publish("new")
    assert len(plugin.machine.mounts_below()) == 2
    await volume.unpublish("old")
    with pytest.raises(FailedPrecondition, match="pods/pvc-1/new"):
        await volume.unstage()
    await volume.unpublish("new")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []


async def test_unstage_proves_the_disk_of_a_volume_that_only_the_predecessor_has_mounted(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=UID)
    run("mkfs.ext4", "-q", str(disk.path))
    volume = PodVolume(plugin, serial=UID, content=Content.USED)
    for pod in ("a", "b"):
        (volume.pods / pod).mkdir()
        run("mount", str(disk.path), str(volume.pods / pod))
    await volume.unpublish("a")
    with pytest.raises(FailedPrecondition, match="pods/pvc-1/b"):
        await volume.unstage()
    await volume.unpublish("b")
    await volume.unstage()


async def test_a_volume_of_the_predecessor_whose_disk_has_left_is_unpublished_all_the_same(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=UID, size=SMALLEST_XFS)
    run("mkfs.xfs", "-q", str(disk.path))
    volume = PodVolume(plugin, serial=UID)
    target = plugin.machine.folder("pods/pvc-1/old")
    run("mount", str(disk.path), str(target))
    lose(target)
    plugin.machine.hide(disk)
    await volume.unpublish("old")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []
