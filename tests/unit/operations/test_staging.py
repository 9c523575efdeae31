"""Staging on a fake host: what is formatted, what is refused, what a repeat does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubevirt_csi.domain.access import AccessMode
from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Internal, Unavailable
from kubevirt_csi.ports.host import Record
from tests.fakes.host import MIB, FakeHost, is_zero
from tests.fakes.node import SERIAL, STAGING, FakeNode, volume

CONTEXT = 'context="system_u:object_r:container_file_t:s0:c1,c2"'

pytestmark = pytest.mark.looptime  # waiting costs nothing


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(FakeHost(), disk_wait_seconds=0.0)


async def test_a_blank_disk_is_marked_formatted_unmarked_and_mounted_in_this_order(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    assert node.host.calls == [
        "mark",
        "make ext4 on vdb",
        "flush vdb",
        "erase mark",
        f"mount /dev/vdb on {STAGING} with errors=remount-ro",
    ]
    assert is_zero(disk.content[-MIB:])
    assert node.host.records == {"pvc-1": Record(volume_id="pvc-1", serial=SERIAL)}


async def test_staging_again_changes_nothing(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    calls = list(node.host.calls)
    await FakeNode(node.host).staging.stage(volume())
    assert node.host.calls == calls
    assert node.host.mount_points() == [STAGING]


async def test_a_file_system_that_is_there_is_checked_and_mounted_and_not_made(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    await node.staging.stage(volume(content=Content.USED))
    assert node.host.calls == ["check ext4 on vdb", f"mount /dev/vdb on {STAGING} with errors=remount-ro"]


async def test_a_file_system_that_is_in_use_already_is_not_checked(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.sign("ext4")
    node.host.mount_elsewhere(disk, "/kubelet/pods/older")
    await node.staging.stage(volume())
    assert node.host.calls == [f"mount /dev/vdb on {STAGING} with errors=remount-ro"]


async def test_an_xfs_that_was_found_is_mounted_with_nouuid_even_when_no_type_was_asked_for(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("xfs")
    await node.staging.stage(volume(flags=("noatime",)))
    assert node.host.calls[-1] == f"mount /dev/vdb on {STAGING} with noatime,nouuid"


async def test_another_type_than_the_one_asked_for_is_refused_and_both_are_named(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("xfs")
    with pytest.raises(FailedPrecondition, match=r"type xfs, but ext4"):
        await node.staging.stage(volume(fs_type="ext4"))
    assert node.host.calls == []


async def test_a_used_volume_is_formatted_only_after_all_of_its_disk_was_read(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume(content=Content.USED))
    assert node.host.calls[:9] == [*(f"read at {n * MIB}" for n in range(8)), "mark"]


async def test_a_used_volume_with_one_byte_in_the_middle_is_refused(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.content[4 * MIB + 5000] = 1
    with pytest.raises(FailedPrecondition, match=r"after byte 4194304.*format-override=" + SERIAL):
        await node.staging.stage(volume(content=Content.USED))
    assert node.host.formats() == []


async def stage_with_a_read_error(node: FakeNode, *, after: int) -> None:
    """A full read that fails after so many steps."""

    def read(left: int) -> None:
        if left == 0:
            raise Unavailable("I/O error")
        node.host.before["zeroes"] = lambda: read(left - 1)

    node.host.before["zeroes"] = lambda: read(after)
    with pytest.raises(Unavailable):
        await node.staging.stage(volume(content=Content.USED))


async def test_the_full_read_goes_on_where_a_failed_attempt_has_stopped(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await stage_with_a_read_error(node, after=3)
    await node.staging.stage(volume(content=Content.USED))
    reads = [call for call in node.host.calls if call.startswith("read")]
    assert reads == [f"read at {n * MIB}" for n in range(8)]


async def test_a_disk_that_was_plugged_anew_is_read_from_its_start(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await stage_with_a_read_error(node, after=3)
    node.host.change("vdb", sequence=99)
    node.host.disks["vdb"].content[MIB + 5000] = 1
    with pytest.raises(FailedPrecondition, match="after byte 1048576"):
        await node.staging.stage(volume(content=Content.USED))


async def test_a_volume_that_was_unstaged_is_read_from_its_start(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await stage_with_a_read_error(node, after=3)
    await node.unstage()
    node.host.disks["vdb"].content[MIB + 5000] = 1
    with pytest.raises(FailedPrecondition, match="after byte 1048576"):
        await node.staging.stage(volume(content=Content.USED))


async def test_a_volume_that_this_node_remembers_counts_as_used(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.content[4 * MIB + 5000] = 1
    node.host.records["pvc-1"] = Record(volume_id="pvc-1", serial=SERIAL)
    with pytest.raises(FailedPrecondition, match="has been used before"):
        await node.staging.stage(volume(content=Content.NONE))


async def test_a_volume_with_a_source_is_never_formatted(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    with pytest.raises(FailedPrecondition, match="snapshot or a clone"):
        await node.staging.stage(volume(content=Content.SOURCE))
    assert node.host.calls == []


async def test_a_format_that_was_cut_off_is_repeated_even_on_another_node(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.failures["make late"] = Internal("killed")
    with pytest.raises(Internal):
        await node.staging.stage(volume())
    node.host.records.clear()
    await FakeNode(node.host).staging.stage(volume(content=Content.USED))
    assert node.host.formats() == ["make ext4 on vdb"] * 2


async def test_a_format_that_was_cut_off_before_its_mark_was_erased_is_repeated(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.failures["erase_mark"] = Unavailable("I/O error")
    with pytest.raises(Unavailable):
        await node.staging.stage(volume())
    assert node.host.mounts == []
    await node.staging.stage(volume())
    assert node.host.formats() == ["make ext4 on vdb"] * 2


async def test_the_mark_of_another_volume_permits_nothing(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.content[-MIB : -MIB + 10] = b"MARK pvc-9"
    with pytest.raises(FailedPrecondition, match="volume 'pvc-9'"):
        await node.staging.stage(volume())


async def test_a_disk_that_changes_its_serial_after_it_was_found_is_not_touched(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    node.host.before["probe"] = lambda: node.host.change("vdb", serial="another")
    with pytest.raises(Unavailable, match="became another disk"):
        await node.staging.stage(volume())
    assert node.host.calls == []
    assert is_zero(disk.content)


async def test_a_disk_that_changes_while_it_is_formatted_is_not_mounted(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.before["flush"] = lambda: node.host.change("vdb", serial="another")
    with pytest.raises(Unavailable):
        await node.staging.stage(volume())
    assert node.host.mounts == []


async def test_a_disk_that_changes_just_before_the_mount_is_not_mounted(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    node.host.before["remember"] = lambda: node.host.change("vdb", serial="another")
    with pytest.raises(Unavailable):
        await node.staging.stage(volume())
    assert node.host.mounts == []


async def test_a_disk_that_something_holds_open_is_not_formatted(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).opened_exclusively = True
    with pytest.raises(FailedPrecondition, match="has it open"):
        await node.staging.stage(volume())
    assert node.host.calls == []


async def test_a_volume_is_not_mounted_when_the_record_cannot_be_written(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.failures["remember"] = Unavailable("disk full")
    with pytest.raises(Unavailable):
        await node.staging.stage(volume())
    assert node.host.mounts == []


async def test_a_raw_volume_needs_its_disk_and_nothing_else(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume(block=True))
    assert node.host.calls == []
    assert "pvc-1" in node.host.records


async def test_a_staging_path_with_another_disk_is_refused_and_both_are_named(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.mount_elsewhere(node.host.plug("vdc", serial="other"), STAGING)
    with pytest.raises(FailedPrecondition, match=r"mount of /dev/vdc.*disk /dev/vdb"):
        await node.staging.stage(volume())


async def test_a_mount_of_a_disk_that_has_left_is_taken_away_first(node: FakeNode) -> None:
    gone = node.host.plug("vdc", serial="old")
    node.host.mount_elsewhere(gone, STAGING)
    del node.host.disks["vdc"]
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    assert [entry.device for entry in node.host.mounts] == [disk.shown.number]


async def test_staging_as_another_type_or_with_an_option_that_is_missing_is_incompatible(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    with pytest.raises(AlreadyExists, match="staged as ext4, but xfs"):
        await node.staging.stage(volume(fs_type="xfs"))
    with pytest.raises(AlreadyExists, match="without the options noexec"):
        await node.staging.stage(volume(flags=("noexec",)))


async def test_a_reader_only_volume_is_staged_writable_so_that_its_group_can_be_set(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    await node.staging.stage(volume(mode=AccessMode.SINGLE_NODE_READER_ONLY))
    assert not node.host.mounts[0].read_only


async def test_a_volume_is_staged_with_the_context_that_was_asked_for_and_a_repeat_changes_nothing(
    node: FakeNode,
) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume(flags=(CONTEXT,)))
    calls = list(node.host.calls)
    await node.staging.stage(volume(flags=(CONTEXT.replace("c1,c2", "c2,c1"),)))
    await node.staging.stage(volume())
    assert node.host.calls == calls


async def test_a_second_context_is_refused_and_both_are_named(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume(flags=(CONTEXT,)))
    with pytest.raises(AlreadyExists, match=r"s0:c1,c2, but .*s0:c3,c4 is asked for"):
        await node.staging.stage(volume(flags=(CONTEXT.replace("c1,c2", "c3,c4"),)))


async def test_a_context_is_refused_while_another_drivers_mount_has_none(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.sign("ext4")
    node.host.mount_elsewhere(disk, "/kubelet/pods/older")
    with pytest.raises(AlreadyExists, match="pods/older with SELinux context none"):
        await node.staging.stage(volume(flags=(CONTEXT,)))
    assert node.host.mount_points() == ["/kubelet/pods/older"]


async def test_a_context_that_mount_left_out_is_no_staging(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.selinux_is_on = False
    with pytest.raises(FailedPrecondition, match="/sys/fs/selinux"):
        await node.staging.stage(volume(flags=(CONTEXT,)))
    assert node.host.mounts == []


async def test_a_mount_that_shows_another_disk_is_taken_away_again(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    twin = node.host.plug("vdc", serial="twin")
    node.host.before["mount"] = lambda: node.host.before.update(
        table=lambda: node.host.mounts.append(replace(node.host.mounts.pop(), device=twin.shown.number))
    )
    with pytest.raises(Internal, match="taken away again"):
        await node.staging.stage(volume())
    assert node.host.mounts == []


async def test_a_tmpfs_at_the_staging_path_is_refused_and_not_taken_for_stale(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.mount_elsewhere(node.host.plug("vdc", serial="other"), STAGING)
    node.host.mounts[0] = replace(node.host.mounts[0], device=DeviceNumber(0, 99), fs_type="tmpfs")
    with pytest.raises(FailedPrecondition, match="unmount it"):
        await node.staging.stage(volume())
    assert node.host.mount_points() == [STAGING]


class HostWithAPartition(FakeHost):
    """A partition is no whole disk, but there is a device node of it."""

    async def device_at(self, path: str) -> DeviceNumber | None:
        return DeviceNumber(8, 1) if path == "/dev/source" else await super().device_at(path)


async def test_a_partition_at_the_staging_path_is_refused_and_not_taken_for_stale() -> None:
    node = FakeNode(HostWithAPartition(), disk_wait_seconds=0.0)
    node.host.plug("vdb", serial=SERIAL)
    node.host.mount_elsewhere(node.host.plug("vdc", serial="other"), STAGING)
    node.host.mounts[0] = replace(node.host.mounts[0], device=DeviceNumber(8, 1))
    with pytest.raises(FailedPrecondition, match="unmount it"):
        await node.staging.stage(volume())
    assert node.host.mount_points() == [STAGING]
