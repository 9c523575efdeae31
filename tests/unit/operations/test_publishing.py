"""Publishing on a fake host: binds, read-only, restaging, and what a repeat or an undo does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubevirt_csi.domain.access import AccessMode
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Internal, Unavailable
from kubevirt_csi.ports.host import Record
from tests.fakes.host import FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode, publication, volume

A, B = "/kubelet/pods/a", "/kubelet/pods/b"
UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"

pytestmark = pytest.mark.looptime  # waiting costs nothing


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(FakeHost(), disk_wait_seconds=0.0)
    node.host.plug("vdb", serial=SERIAL)
    return node


async def staged(node: FakeNode) -> FakeNode:
    await node.staging.stage(volume())
    node.host.calls.clear()
    return node


async def test_two_pods_see_one_mount_one_of_them_read_only(node: FakeNode) -> None:
    await staged(node)
    await node.publishing.publish(publication(volume(), A))
    await node.publishing.publish(publication(volume(), B, read_only=True))
    assert node.host.calls == [f"bind {STAGING} to {A}", f"bind {STAGING} to {B} read-only"]
    assert [entry.read_only for entry in node.host.mounts] == [False, False, True]


async def test_publishing_again_changes_nothing(node: FakeNode) -> None:
    await staged(node)
    await node.publishing.publish(publication(volume(), A, read_only=True))
    await FakeNode(node.host).publishing.publish(publication(volume(), A, read_only=True))
    assert node.host.calls == [f"bind {STAGING} to {A} read-only"]


@pytest.mark.parametrize("first", [True, False])
async def test_publishing_the_same_target_in_the_other_mode_is_incompatible(node: FakeNode, first: bool) -> None:
    await staged(node)
    await node.publishing.publish(publication(volume(), A, read_only=first))
    with pytest.raises(AlreadyExists):
        await node.publishing.publish(publication(volume(), A, read_only=not first))


async def test_a_volume_whose_staging_was_lost_is_staged_again_and_never_bound_from_the_plain_folder(
    node: FakeNode,
) -> None:
    await staged(node)
    node.host.mounts.clear()
    await node.publishing.publish(publication(volume(), A))
    disk = node.host.disks["vdb"].shown
    assert [(entry.mount_point, entry.device) for entry in node.host.mounts] == [
        (STAGING, disk.number),
        (A, disk.number),
    ]


async def test_a_target_that_another_version_mounted_directly_serves_on(node: FakeNode) -> None:
    disk = node.host.disks["vdb"]
    disk.sign("ext4")
    node.host.mount_elsewhere(disk, A)
    await node.publishing.publish(publication(volume(), A))
    await node.publishing.publish(publication(volume(), B))
    assert node.host.mount_points() == [A, STAGING, B]
    for target in (A, B):
        await node.unpublish(target)
    await node.unstage()
    assert node.host.mounts == []


async def test_unpublishing_what_another_version_published_notes_the_disk_for_unstage(node: FakeNode) -> None:
    disk = node.host.disks["vdb"]
    node.host.mount_elsewhere(disk, A)
    await node.unpublish(A)
    assert node.host.records["pvc-1"] == Record(volume_id="pvc-1", serial=SERIAL)
    disk.opened_exclusively = True
    with pytest.raises(FailedPrecondition, match="still in use"):
        await node.unstage()


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        pytest.param(AccessMode.SINGLE_NODE_READER_ONLY, (), id="access mode"),
        pytest.param(AccessMode.SINGLE_NODE_WRITER, ("ro",), id="mount option"),
    ],
)
async def test_read_only_also_follows_from_the_capability(
    node: FakeNode, mode: AccessMode, flags: tuple[str, ...]
) -> None:
    await node.publishing.publish(publication(volume(mode=mode, flags=flags), A))
    assert node.host.mounts[-1].read_only


async def test_a_bind_that_is_not_read_only_in_truth_is_taken_away_again(node: FakeNode) -> None:
    await staged(node)
    node.host.read_only_binds_work = False
    with pytest.raises(Internal, match="taken away again"):
        await node.publishing.publish(publication(volume(), A, read_only=True))
    assert A not in node.host.mount_points()


async def test_a_second_target_is_refused_to_a_volume_for_one_pod(node: FakeNode) -> None:
    only_one = volume(mode=AccessMode.SINGLE_NODE_SINGLE_WRITER)
    await node.publishing.publish(publication(only_one, A))
    await node.publishing.publish(publication(only_one, A))
    with pytest.raises(FailedPrecondition, match=f"published at {A}"):
        await node.publishing.publish(publication(only_one, B))


async def test_a_second_target_is_refused_to_a_raw_volume_for_one_pod(node: FakeNode) -> None:
    only_one = volume(mode=AccessMode.SINGLE_NODE_SINGLE_WRITER, block=True)
    await node.publishing.publish(publication(only_one, A))
    with pytest.raises(FailedPrecondition, match=f"published at {A}"):
        await node.publishing.publish(publication(only_one, B))


async def test_a_target_of_the_predecessor_counts_as_the_one_pod(node: FakeNode) -> None:
    disk = node.host.disks["vdb"]
    disk.sign("ext4")
    node.host.mount_elsewhere(disk, A)
    only_one = volume(mode=AccessMode.SINGLE_NODE_SINGLE_WRITER)
    await node.publishing.publish(publication(only_one, A))
    with pytest.raises(FailedPrecondition, match=f"published at {A}"):
        await node.publishing.publish(publication(only_one, B))
    await node.unpublish(A)
    await node.publishing.publish(publication(only_one, B))


async def test_the_old_single_node_mode_is_for_many_pods_because_old_kubelets_send_it_for_all(node: FakeNode) -> None:
    old = volume(mode=AccessMode.SINGLE_NODE_WRITER)
    await node.publishing.publish(publication(old, A))
    await node.publishing.publish(publication(old, B))
    assert node.host.mount_points() == [STAGING, A, B]


async def test_a_target_that_holds_something_is_not_covered_by_a_mount(node: FakeNode) -> None:
    node.host.files[f"{A}/data"] = b"written before"
    with pytest.raises(FailedPrecondition, match="not empty"):
        await node.publishing.publish(publication(volume(), A))
    assert A not in node.host.mount_points()


async def test_a_target_with_another_disk_is_refused(node: FakeNode) -> None:
    node.host.mount_elsewhere(node.host.plug("vdc", serial="other"), A)
    with pytest.raises(FailedPrecondition, match="not of the volume's disk"):
        await node.publishing.publish(publication(volume(), A))


async def test_a_raw_volume_is_bound_onto_a_file(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(block=True), A))
    await node.publishing.publish(publication(volume(block=True), A))
    assert node.host.calls == [f"bind /dev/vdb to {A}"]
    assert node.host.files[A] == b""
    await node.unpublish(A)
    assert node.host.files == {}


async def test_a_raw_volume_at_a_target_of_another_disk_is_refused(node: FakeNode) -> None:
    node.host.plug("vdc", serial="other")
    await node.publishing.publish(publication(volume(block=True, serial="other", volume_id="pvc-2"), A))
    with pytest.raises(FailedPrecondition, match="not of the volume's disk"):
        await node.publishing.publish(publication(volume(block=True), A))


async def test_a_raw_volume_cannot_be_read_only_for_one_pod(node: FakeNode) -> None:
    with pytest.raises(FailedPrecondition, match="raw device cannot be made read-only"):
        await node.publishing.publish(publication(volume(block=True), A, read_only=True))
    node.host.change("vdb", read_only=True)
    await node.publishing.publish(publication(volume(block=True), A, read_only=True))


@pytest.mark.parametrize("block", [True, False], ids=["raw", "mounted"])
async def test_a_write_protected_disk_is_published_read_only_or_not_at_all(node: FakeNode, block: bool) -> None:
    node.host.disks["vdb"].sign("ext4")
    node.host.change("vdb", read_only=True)
    with pytest.raises(FailedPrecondition, match="write-protected"):
        await node.publishing.publish(publication(volume(block=block), A))
    assert A not in node.host.mount_points()
    for _ in range(2):
        await node.publishing.publish(publication(volume(block=block), A, read_only=True))
    assert A in node.host.mount_points()


async def test_unpublish_takes_off_every_layer_and_the_target(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), A))
    node.host.mount_elsewhere(node.host.disks["vdb"], A)
    await node.unpublish(A)
    assert node.host.mount_points() == [STAGING]
    assert A not in node.host.folders
    await node.unpublish(A)


async def test_unpublish_keeps_what_was_written_where_no_mount_was(node: FakeNode) -> None:
    node.host.files[f"{A}/data"] = b"written before"
    with pytest.raises(Internal, match="not empty"):
        await node.unpublish(A)
    assert node.host.files == {f"{A}/data": b"written before"}


async def test_a_damaged_record_does_not_keep_a_pod_from_ending(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), A))
    node.host.failures["recall"] = Internal("damaged")
    await node.unpublish(A)
    assert node.host.mount_points() == [STAGING]


async def test_unpublish_of_a_busy_target_fails_and_removes_nothing(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), A))
    node.host.busy.add(A)
    with pytest.raises(FailedPrecondition, match="busy"):
        await node.unpublish(A)
    assert A in node.host.folders


async def test_a_raw_disk_that_changes_after_it_was_found_is_not_bound(node: FakeNode) -> None:
    node.host.before["verify"] = lambda: node.host.change("vdb", serial="another")
    with pytest.raises(Unavailable):
        await node.publishing.publish(publication(volume(block=True), A))
    assert node.host.mounts == []


async def test_a_bind_has_the_restrictions_of_a_single_mount_and_a_repeat_needs_them_too(node: FakeNode) -> None:
    restricted = volume(flags=("noexec", "discard", "nosuid"))
    await node.publishing.publish(publication(restricted, A))
    await node.publishing.publish(publication(restricted, A))
    assert node.host.mounts[-1].options == {"rw", "noexec", "nosuid"}
    assert node.host.mount_points() == [STAGING, A]
    node.host.mounts[-1] = replace(node.host.mounts[-1], options=frozenset({"rw"}))
    with pytest.raises(AlreadyExists, match="published without noexec, nosuid"):
        await node.publishing.publish(publication(restricted, A))


async def test_a_bind_that_lost_a_restriction_is_taken_away_again(node: FakeNode) -> None:
    restricted = volume(flags=("noexec",))
    await node.staging.stage(restricted)
    node.host.before["bind"] = lambda: node.host.mounts.append(
        replace(node.host.mounts.pop(), options=frozenset({"rw"}))
    )
    with pytest.raises(Internal, match="taken away again"):
        await node.publishing.publish(publication(restricted, A))
    assert A not in node.host.mount_points()


async def test_a_target_of_the_predecessor_lacks_the_options_that_it_ignored_and_serves_on(node: FakeNode) -> None:
    disk = node.host.plug("sdb", serial=UID, bus=Bus.SCSI)
    disk.sign("ext4")
    node.host.mount_elsewhere(disk, A)
    older = volume(serial=UID, flags=("noexec",))
    await node.publishing.publish(publication(older, A))
    await node.publishing.publish(publication(older, B))
    assert [(entry.mount_point, "noexec" in entry.options) for entry in node.host.mounts] == [
        (A, False),
        (STAGING, True),
        (B, True),
    ]
    with pytest.raises(AlreadyExists, match="read-only is asked for"):
        await node.publishing.publish(publication(older, A, read_only=True))


async def test_a_target_whose_disk_has_left_is_mounted_anew(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), A))
    content = node.host.disks.pop("vdb").content
    disk = node.host.plug("vdc", serial=SERIAL)
    disk.content[:] = content
    await node.publishing.publish(publication(volume(), A))
    assert [(entry.mount_point, entry.device) for entry in node.host.mounts] == [
        (STAGING, disk.shown.number),
        (A, disk.shown.number),
    ]


async def test_unpublish_of_a_mount_that_no_longer_answers_needs_no_look_at_it(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), A))
    node.host.records.clear()
    node.host.failures["device_at"] = Unavailable("does not answer")
    await node.unpublish(A)
    assert node.host.mount_points() == [STAGING]
