"""Volumes on a real kernel: made, mounted, shown to pods, written, taken away, found again."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, NotFound
from kubevirt_csi.ports.host import FileSystemUsage, Finding
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, run
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


@pytest.mark.parametrize("bus", ["virtio", "scsi"])
@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_data_outlives_the_pod_the_staging_and_the_plugin(plugin: Plugin, fs_type: str, bus: str) -> None:
    disk = plugin.machine.plug("sdb" if bus == "scsi" else "vdb", serial=SERIAL, size=SMALLEST_XFS, bus=bus)
    volume = PodVolume(plugin, fs_type=fs_type, size=SMALLEST_XFS)
    await volume.stage()
    target = await volume.publish("a")
    (target / "data").write_bytes(b"written by a pod")
    await volume.unpublish("a")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []
    assert not target.exists()

    restarted = await start_plugin(plugin.machine)
    again = PodVolume(restarted, content=Content.USED)
    assert (await again.publish("b") / "data").read_bytes() == b"written by a pod"
    assert restarted.commands.made() == []
    assert run("blkid", "-p", "-s", "TYPE", "-o", "value", str(disk.path)).strip() == fs_type


async def test_two_pods_share_one_mount_and_one_of_them_cannot_write(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin, flags=("noatime", "noexec"))
    await volume.stage()
    writer, reader = await volume.publish("writer"), await volume.publish("reader", read_only=True)
    (writer / "data").write_text("seen by both")
    assert (reader / "data").read_text() == "seen by both"
    with pytest.raises(OSError, match="Read-only") as refused:
        (reader / "data").write_text("")
    assert refused.value.errno == errno.EROFS
    table = await plugin.mounts.table()
    staged, read_only = table.top(str(volume.staging)), table.top(str(reader))
    assert staged is not None
    assert read_only is not None
    assert staged.options == {"rw", "noatime", "noexec"}
    assert read_only.options == {"ro", "noatime", "noexec"}
    assert len(plugin.machine.mounts_below()) == 3


async def test_a_repeat_of_everything_changes_nothing(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    for _ in range(3):
        await volume.stage()
        await volume.publish("a")
        await volume.publish("b", read_only=True)
    assert len(plugin.machine.mounts_below()) == 3
    assert plugin.commands.made() == ["mkfs.ext4"]
    for _ in range(3):
        await volume.unpublish("a")
        await volume.unpublish("b")
    for _ in range(3):
        await volume.unstage()
    assert plugin.machine.mounts_below() == []


async def test_another_mode_at_the_same_target_is_incompatible(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.publish("a", read_only=True)
    with pytest.raises(AlreadyExists):
        await volume.publish("a")
    await volume.publish("b")
    with pytest.raises(AlreadyExists):
        await volume.publish("b", read_only=True)


async def test_a_raw_volume_is_the_device_itself(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=8 * MIB)
    volume = PodVolume(plugin, block=True)
    await volume.stage()
    target = await volume.publish("a")
    with target.open("r+b") as device:
        device.seek(4 * MIB)
        device.write(b"raw data")
    assert await plugin.usage.at(str(target), volume_id="pvc-1") == Finding(figures=8 * MIB)
    assert not (await volume.publish("b")).is_file()
    with pytest.raises(FailedPrecondition, match="pods/pvc-1/a"):
        await volume.unstage()
    await volume.unpublish("a")
    await volume.unpublish("b")
    await volume.unstage()
    with disk.image.open("rb") as image:
        image.seek(4 * MIB)
        assert image.read(8) == b"raw data"
    assert plugin.machine.mounts_below() == []
    assert plugin.commands.made() == []


async def test_publishing_after_a_reboot_mounts_the_disk_and_not_the_plain_folder(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.stage()
    run("umount", str(volume.staging))
    target = await volume.publish("a")
    (target / "data").write_text("on the disk")
    assert len(plugin.machine.mounts_below()) == 2
    assert plugin.commands.made() == ["mkfs.ext4"]
    await volume.unpublish("a")
    await volume.unstage()
    assert list(volume.staging.iterdir()) == []


async def test_a_target_that_the_predecessor_mounted_directly_serves_on(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=UID)
    run("mkfs.ext4", "-q", "-m", "0", "-F", str(disk.path))
    volume = PodVolume(plugin, serial=UID, content=Content.USED)
    target = volume.pods / "old"
    target.mkdir()
    run("mount", str(disk.path), str(target))
    (target / "data").write_text("older")
    assert await volume.publish("old") == target
    assert (await volume.publish("new") / "data").read_text() == "older"
    await volume.unpublish("old")
    with pytest.raises(FailedPrecondition):
        await volume.unstage()
    await volume.unpublish("new")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []


async def test_stacked_mounts_are_all_taken_off(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    (target / "data").write_text("kept")
    run("mount", "--bind", str(volume.staging), str(target))
    run("mount", "--bind", str(target), str(volume.staging))
    await volume.unpublish("a")
    assert not target.exists()
    await volume.unstage()
    assert plugin.machine.mounts_below() == []
    assert (await volume.publish("b") / "data").read_text() == "kept"


async def test_a_target_with_a_file_is_kept_with_it(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    (volume.pods / "a").mkdir()
    (volume.pods / "a" / "data").write_text("written without a mount")
    with pytest.raises(FailedPrecondition, match="not empty"):
        await volume.publish("a")
    with pytest.raises(Exception, match="is kept"):
        await volume.unpublish("a")
    assert (volume.pods / "a" / "data").read_text() == "written without a mount"


async def test_a_busy_target_is_neither_detached_lazily_nor_removed(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    with (target / "data").open("w"), pytest.raises(FailedPrecondition, match="still uses it"):
        await volume.unpublish("a")
    assert str(target) in plugin.machine.mounts_below()
    await volume.unpublish("a")


async def test_unstage_fails_while_the_volume_is_mounted_elsewhere(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.stage()
    elsewhere = plugin.machine.folder("elsewhere")
    run("mount", str(disk.path), str(elsewhere))
    with pytest.raises(FailedPrecondition, match="elsewhere"):
        await volume.unstage()
    assert str(volume.staging) in plugin.machine.mounts_below()
    run("umount", str(elsewhere))
    await volume.unstage()


@contextmanager
def other_mount_namespace() -> Iterator[None]:
    """A process with a copy of the present mounts, as a container or a hardened service has one."""
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            yield
        finally:
            holder.kill()


async def test_unstage_fails_while_another_mount_namespace_holds_the_volume(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.stage()
    with other_mount_namespace(), pytest.raises(FailedPrecondition, match="another mount namespace"):
        await volume.unstage()
    await volume.unstage()


async def test_stats_tell_bytes_and_inodes_and_nothing_of_a_plain_folder(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    before = (await plugin.usage.at(str(target), volume_id="pvc-1")).figures
    (target / "data").write_bytes(os.urandom(4 * MIB))
    os.sync()
    after = (await plugin.usage.at(str(target), volume_id="pvc-1")).figures
    assert isinstance(before, FileSystemUsage)
    assert isinstance(after, FileSystemUsage)
    assert after.used_bytes - before.used_bytes == 4 * MIB
    assert after.used_inodes - before.used_inodes == 1
    assert after.total_bytes >= after.used_bytes + after.available_bytes
    with pytest.raises(NotFound):
        await plugin.usage.at(str(volume.pods), volume_id="pvc-1")


async def test_read_only_binds_stay_read_only_below_a_shared_folder_and_leave_nothing_behind(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    kubelet = str(plugin.machine.kubelet)
    run("mount", "--bind", kubelet, kubelet)
    run("mount", "--make-rshared", kubelet)
    volume = PodVolume(plugin)
    writer, reader = await volume.publish("writer"), await volume.publish("reader", read_only=True)
    (writer / "data").write_text("seen by both")
    with pytest.raises(OSError, match="Read-only"):
        (reader / "data").write_text("")
    assert plugin.machine.mounts_below() == [kubelet, str(volume.staging), str(writer), str(reader)]
    for pod in ("writer", "reader"):
        await volume.unpublish(pod)
    await volume.unstage()
    assert plugin.machine.mounts_below() == [kubelet]


async def test_a_mount_that_a_killed_plugin_left_in_its_workspace_is_taken_away_at_the_start(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.stage()
    leftover = plugin.machine.folder("../state/mounts/leftover")
    run("mount", "--bind", str(volume.staging), str(leftover))
    await start_plugin(plugin.machine)
    assert plugin.machine.mounts_below() == [str(volume.staging)]
    assert not list((plugin.machine.state / "mounts").iterdir())
