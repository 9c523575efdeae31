"""Mount options on a real kernel: what reaches a mount and its binds, and copies mounted beside their source."""

from __future__ import annotations

import os
import shutil

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Internal
from tests.host.conftest import Plugin
from tests.host.machine import lose, run
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

CONTEXT = 'context="system_u:object_r:container_file_t:s0:c1,c2"'


async def test_options_of_the_class_reach_the_kernel_and_those_of_a_mount_its_binds(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin, flags=("noatime", "discard", "commit=30", "nosuid", "nodev"))
    await volume.stage()
    reader = await volume.publish("reader", read_only=True)
    table = await plugin.mounts.table()
    staged, bound = table.top(str(volume.staging)), table.top(str(reader))
    assert staged is not None
    assert bound is not None
    assert staged.options == {"rw", "noatime", "nosuid", "nodev"}
    assert bound.options == {"ro", "noatime", "nosuid", "nodev"}
    assert {"discard", "commit=30"} <= staged.super_options


async def test_a_target_without_an_option_that_is_asked_for_is_another_publication(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    target = await PodVolume(plugin).publish("a")
    run("mount", "-o", "remount,bind,noexec", "--target", str(plugin.machine.folder("staging/pvc-1")))
    with pytest.raises(AlreadyExists, match="published without noexec"):
        await PodVolume(plugin, flags=("noexec",)).publish("a")
    assert str(target) in plugin.machine.mounts_below()


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_a_write_protected_disk_is_mounted_read_only_with_its_journal_as_it_is(
    plugin: Plugin, fs_type: str
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type=fs_type)
    target = await volume.publish("a")
    (target / "data").write_text("written before")
    if fs_type != "btrfs":  # which has no such switch, and replays nothing after a clean end
        lose(target)
    await volume.unpublish("a")
    await volume.unstage()
    plugin.machine.unplug(disk)
    plugin.machine.plug("vdc", serial=SERIAL, image=disk.image, read_only=True)
    with pytest.raises(FailedPrecondition, match="write-protected"):
        await volume.publish("a")
    reader = await volume.publish("a", read_only=True)
    assert reader.is_mount()
    with pytest.raises(OSError, match="Read-only"):
        (reader / "more").write_text("")
    await volume.unpublish("a")
    await volume.unstage()


async def test_a_selinux_context_that_the_kernel_does_not_show_is_an_error_and_no_mount(plugin: Plugin) -> None:
    if os.path.exists("/sys/fs/selinux/enforce"):  # noqa: PTH110, ASYNC240 - sysfs answers at once
        pytest.skip("SELinux is on here: the context would reach the kernel")
    plugin.machine.plug("vdb", serial=SERIAL)
    with pytest.raises(FailedPrecondition, match=r"without context=system_u.*deploy/tenant/components/selinux"):
        await PodVolume(plugin, flags=(CONTEXT, "noatime")).publish("a")
    assert plugin.machine.mounts_below() == []


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_copy_is_mounted_beside_its_source_though_both_have_one_uuid(plugin: Plugin, fs_type: str) -> None:
    source = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type=fs_type)
    (await volume.publish("a") / "data").write_text("of the source")
    os.sync()
    shutil.copyfile(source.image, plugin.machine.root / "copy.img")
    plugin.machine.plug("vdc", serial="copy", image=plugin.machine.root / "copy.img")
    copy = PodVolume(plugin, volume_id="pvc-2", serial="copy", content=Content.SOURCE)  # no type is asked for
    target = await copy.publish("a")
    assert (target / "data").read_text() == "of the source"
    (target / "data").write_text("of the copy")
    assert (volume.pods / "a" / "data").read_text() == "of the source"
    assert plugin.commands.made() == [f"mkfs.{fs_type}"]


async def test_a_btrfs_beside_its_copy_is_the_right_one_or_refused(plugin: Plugin) -> None:
    source = plugin.machine.plug("vdb", serial=SERIAL, size=SMALLEST_XFS)
    volume = PodVolume(plugin, fs_type="btrfs")
    (await volume.publish("a") / "data").write_text("of the source")
    os.sync()
    shutil.copyfile(source.image, plugin.machine.root / "copy.img")
    plugin.machine.plug("vdc", serial="copy", image=plugin.machine.root / "copy.img")
    copy = PodVolume(plugin, volume_id="pvc-2", serial="copy", content=Content.SOURCE)
    try:
        target = await copy.publish("a")
    except Internal:  # the kernel (before 6.7) takes both for one file system
        assert str(copy.staging) not in plugin.machine.mounts_below()
        return
    (target / "data").write_text("of the copy")
    assert (volume.pods / "a" / "data").read_text() == "of the source"
