"""Formatting on a fake host: what is asked of mkfs, what is proven before it, and what is refused instead."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import FailedPrecondition, Internal, InvalidArgument, Unavailable
from tests.fakes.host import MIB, FakeHost
from tests.fakes.node import SERIAL, FakeNode, volume

pytestmark = pytest.mark.looptime

XFS_SIZE = 300 * MIB


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(FakeHost(), disk_wait_seconds=0.0)


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_every_type_is_made_with_the_options_of_its_class(node: FakeNode, fs_type: str) -> None:
    options = {"ext4": "-m 5", "xfs": "-d agcount=2", "btrfs": "-n 32768"}[fs_type]
    node.host.plug("vdb", serial=SERIAL)
    node.host.change("vdb", size_bytes=XFS_SIZE)
    await node.staging.stage(volume(fs_type=fs_type, mkfs_options=options))
    assert node.host.formats() == [f"make {fs_type} on vdb {options}"]


async def test_options_that_are_not_allowed_are_refused_by_the_node_too_before_anything_is_written(
    node: FakeNode,
) -> None:
    node.host.plug("vdb", serial=SERIAL)
    with pytest.raises(InvalidArgument, match="-E is not allowed; for ext4 there are"):
        await node.staging.stage(volume(mkfs_options="-E discard"))
    assert node.host.calls == []


async def test_options_do_not_matter_to_a_file_system_that_is_there(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    await node.staging.stage(volume(mkfs_options="-E discard"))
    assert node.host.mount_points()


async def test_a_file_system_that_claims_more_than_its_disk_has_is_neither_checked_nor_mounted(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.sign("ext4")
    disk.spans = 8 * MIB + 4096
    with pytest.raises(FailedPrecondition, match=r"the ext4 on disk /dev/vdb .* claims 8392704 bytes, .* has 8388608"):
        await node.staging.stage(volume())
    assert node.host.calls == []
    disk.spans = 8 * MIB
    await node.staging.stage(volume())


@pytest.mark.parametrize("place", [MIB, 2 * MIB, 4 * MIB, 6 * MIB])
async def test_a_copy_of_a_superblock_further_in_keeps_a_disk_from_being_blank(node: FakeNode, place: int) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    disk.content[place + 8] = 1
    with pytest.raises(FailedPrecondition, match="has a copy of its superblock, is not zero"):
        await node.staging.stage(volume())
    assert node.host.calls == []


async def test_a_blank_disk_is_not_wiped_and_one_with_something_on_it_is_once_its_mark_is_there(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    assert "wipe vdb" not in node.host.calls
    other = FakeNode(FakeHost(), disk_wait_seconds=0.0)
    other.host.plug("vdb", serial=SERIAL).sign("LVM2_member")
    await other.staging.stage(volume(override=SERIAL))
    assert other.host.calls[:3] == ["mark", "wipe vdb", "make ext4 on vdb"]


async def test_an_override_is_logged_with_what_it_destroys(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("LVM2_member")
    with capture_logs() as logs:
        await node.staging.stage(volume(override=SERIAL))
    (entry,) = [entry for entry in logs if entry["event"] == "formatting"]
    assert (entry["log_level"], entry["volume_id"], entry["type"]) == ("warning", "pvc-1", "ext4")
    assert "operator's override" in entry["reason"]
    assert "holds a LVM2_member signature" in entry["reason"]
    assert SERIAL in entry["disk"]


async def test_what_the_wipe_did_not_reach_is_found_before_the_mark_is_erased(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    node.host.before["flush"] = lambda: disk.sign("ambivalent")
    with pytest.raises(Internal, match="ext4 was made on disk"):
        await node.staging.stage(volume())
    assert node.host.mounts == []
    await node.staging.stage(volume())
    assert node.host.formats() == ["make ext4 on vdb"] * 2


async def test_a_file_system_on_a_write_protected_disk_is_not_repaired(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    node.host.change("vdb", read_only=True)
    await node.staging.stage(volume())
    assert "check ext4 on vdb" not in node.host.calls


async def test_a_disk_that_cannot_be_read_is_not_formatted(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.failures["first_written"] = Unavailable("Input/output error")
    with pytest.raises(Unavailable, match="Input/output error"):
        await node.staging.stage(volume())
    assert node.host.calls == []


async def test_a_cancelled_format_leaves_a_mark_that_the_next_attempt_goes_by(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    node.host.failures["make late"] = asyncio.CancelledError()  # type: ignore[assignment] # raised like any other
    with pytest.raises(asyncio.CancelledError):
        await node.staging.stage(volume())
    assert node.host.mounts == []
    await node.staging.stage(volume(content=Content.USED))
    assert node.host.formats() == ["make ext4 on vdb"] * 2


async def test_a_format_that_was_cut_off_before_the_disk_grew_is_repeated_and_leaves_no_mark(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    node.host.failures["erase_mark"] = Unavailable("the plug-in was killed")
    with pytest.raises(Unavailable):
        await node.staging.stage(volume(size=8 * MIB))
    node.host.change("vdb", size_bytes=32 * MIB)
    await node.staging.stage(volume(size=8 * MIB))
    assert node.host.formats() == ["make ext4 on vdb"] * 2
    assert b"MARK" not in disk.content


async def test_on_a_disk_that_has_grown_the_mark_of_another_volume_covers_nothing(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    node.host.change("vdb", size_bytes=32 * MIB)
    disk.sign("ext4")
    disk.content[7 * MIB : 7 * MIB + 10] = b"MARK pvc-9"
    await node.staging.stage(volume(size=8 * MIB))
    assert node.host.formats() == []
