"""Growing on the node: the size is waited for, the file system follows its disk, and no failure keeps a pod waiting."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.health import Reason
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import Internal, NotFound, OutOfRange, Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.observe.context import Work
from kubevirt_csi.operations.growing import Expansion
from tests.fakes.host import MIB, FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode, publication, volume

pytestmark = pytest.mark.looptime

POD = "/kubelet/pods/a"


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    host.plug("vdb", serial=SERIAL)
    return host


@pytest.fixture
def node(host: FakeHost) -> FakeNode:
    return FakeNode(host)


def expansion(required: int = 16 * MIB, *, path: str = STAGING, limit: int = 0, volume_id: str = "pvc-1") -> Expansion:
    return Expansion(volume_id=volume_id, path=path, capacity=CapacityRange(required=required, limit=limit))


def grown(host: FakeHost) -> list[str]:
    return [call for call in host.calls if call.startswith("grow ")]


def grow_later(host: FakeHost, *, seconds: float, size: int = 16 * MIB) -> None:
    asyncio.get_running_loop().call_later(seconds, lambda: host.change("vdb", size_bytes=size))


@pytest.mark.parametrize("path", [STAGING, POD], ids=["staging", "pod"])
async def test_the_file_system_grows_when_the_disk_has_its_size(host: FakeHost, node: FakeNode, path: str) -> None:
    await node.publishing.publish(publication(volume()))
    grow_later(host, seconds=8)
    assert await node.growing.expand(expansion(path=path)) == 16 * MIB
    assert grown(host) == [f"grow ext4 on vdb at {STAGING}"]
    assert host.disks["vdb"].spans == 16 * MIB
    assert asyncio.get_running_loop().time() >= 8
    assert host.calls.count("reread size of vdb") > 3  # a SCSI disk may tell nothing unless it is asked


async def test_a_disk_that_does_not_grow_is_an_error_that_names_both_sizes_and_is_not_final(
    host: FakeHost, node: FakeNode
) -> None:
    await node.staging.stage(volume())
    context.begin(work := Work())
    with pytest.raises(Unavailable, match=r"16777216 bytes, but its disk .* 8388608 after 60 s.*ExpandDisks"):
        await node.growing.expand(expansion())
    assert "to have 16777216 bytes" in work.waiting_for
    assert grown(host) == []


async def test_a_map_that_is_smaller_than_its_paths_is_an_error_that_says_which_program_makes_it_larger(
    host: FakeHost, node: FakeNode
) -> None:
    await node.staging.stage(volume())
    shown = host.disks["vdb"].shown
    host.change("vdb", paths=tuple(replace(shown, name=name, size_bytes=16 * MIB) for name in ("sda", "sdb")))
    with pytest.raises(Unavailable, match=r"still had 8388608 .* run `multipathd resize map vdb` on this node"):
        await node.growing.expand(expansion())


async def test_a_volume_that_has_grown_already_is_no_error(node: FakeNode) -> None:
    await node.staging.stage(volume())
    for required in (0, MIB, 8 * MIB):
        assert await node.growing.expand(expansion(required)) == 8 * MIB
    assert asyncio.get_running_loop().time() < 1


async def test_of_a_raw_volume_only_the_size_is_verified(host: FakeHost, node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(block=True)))
    with pytest.raises(Unavailable, match="still had 8388608"):
        await node.growing.expand(expansion(path=POD))
    grow_later(host, seconds=3)
    assert await node.growing.expand(expansion(path=POD)) == 16 * MIB
    assert grown(host) == []


async def test_a_volume_that_is_only_mounted_read_only_is_left_alone(host: FakeHost, node: FakeNode) -> None:
    await node.staging.stage(volume())
    await node.unstage()
    await node.staging.stage(volume(flags=("ro",), content=Content.USED))
    host.disks["vdb"].spans = 4 * MIB
    assert await node.growing.expand(expansion()) == 8 * MIB
    await node.growing.fill("pvc-1", host.disks["vdb"].shown)
    assert grown(host) == []


async def test_through_a_read_only_bind_the_writable_mount_is_grown(host: FakeHost, node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), read_only=True))
    host.change("vdb", size_bytes=16 * MIB)
    assert await node.growing.expand(expansion(path=POD)) == 16 * MIB
    assert grown(host) == [f"grow ext4 on vdb at {STAGING}"]


async def test_a_disk_larger_than_the_limit_is_not_used_up(host: FakeHost, node: FakeNode) -> None:
    await node.staging.stage(volume())
    host.change("vdb", size_bytes=32 * MIB)
    with pytest.raises(OutOfRange, match=f"limit_bytes {20 * MIB}"):
        await node.growing.expand(expansion(limit=20 * MIB))
    assert grown(host) == []


@pytest.mark.parametrize("path", ["some/path", "/nowhere"])
async def test_where_nothing_is_mounted_nothing_is_found(node: FakeNode, path: str) -> None:
    with pytest.raises(NotFound, match="no volume"):
        await node.growing.expand(expansion(path=path))


async def test_another_volumes_mount_is_not_grown(host: FakeHost, node: FakeNode) -> None:
    await node.staging.stage(volume())
    other = host.plug("vdc", serial="fedcba98765432100000")
    host.mount_elsewhere(other, "/kubelet/other")
    host.change("vdc", size_bytes=16 * MIB)
    with pytest.raises(Internal, match=r"on disk /dev/vdb.*/dev/vdc .*is at /kubelet/other"):
        await node.growing.expand(expansion(path="/kubelet/other"))
    assert grown(host) == []


async def test_a_mount_that_the_predecessor_made_grows_without_having_been_staged_here(
    host: FakeHost, node: FakeNode
) -> None:
    host.disks["vdb"].sign("ext4")
    host.mount_elsewhere(host.disks["vdb"], POD)
    host.change("vdb", size_bytes=16 * MIB)
    assert await node.growing.expand(expansion(path=POD)) == 16 * MIB
    assert grown(host) == [f"grow ext4 on vdb at {POD}"]


async def test_a_disk_that_becomes_another_one_meanwhile_is_not_grown(host: FakeHost, node: FakeNode) -> None:
    await node.staging.stage(volume())
    asyncio.get_running_loop().call_later(2, lambda: host.change("vdb", serial="another", size_bytes=16 * MIB))
    with pytest.raises(Unavailable, match="has left this node"):
        await node.growing.expand(expansion())
    assert grown(host) == []


async def test_a_disk_that_has_gone_is_no_success(host: FakeHost, node: FakeNode) -> None:
    await node.staging.stage(volume())
    host.change("vdb", number=DeviceNumber(1, 1))
    with pytest.raises(Unavailable, match="has left this node"):
        await node.growing.expand(expansion())


async def test_every_stage_grows_a_file_system_that_is_smaller_than_its_disk(host: FakeHost, node: FakeNode) -> None:
    """A volume restored from a smaller snapshot, or grown while it was attached nowhere."""
    host.change("vdb", size_bytes=32 * MIB)
    host.disks["vdb"].sign("ext4")
    host.disks["vdb"].spans = 4 * MIB
    await node.staging.stage(volume(content=Content.SOURCE))
    assert grown(host) == [f"grow ext4 on vdb at {STAGING}"]
    host.disks["vdb"].spans = 4 * MIB
    await node.staging.stage(volume(content=Content.SOURCE))
    assert len(grown(host)) == 2  # also when it is staged already
    await node.staging.stage(volume(content=Content.SOURCE))
    assert len(grown(host)) == 2


async def test_what_a_file_system_leaves_unused_at_the_end_is_not_grown_into(host: FakeHost, node: FakeNode) -> None:
    host.change("vdb", size_bytes=32 * MIB)
    host.disks["vdb"].sign("ext4")
    host.disks["vdb"].spans = 17 * MIB
    await node.staging.stage(volume(content=Content.USED))
    assert grown(host) == []


@pytest.mark.parametrize("method", ["superblock", "opened", "grow"])
async def test_a_growth_that_fails_keeps_no_volume_from_being_mounted_and_is_told_until_a_stage_makes_it_good(
    host: FakeHost, node: FakeNode, method: str
) -> None:
    host.change("vdb", size_bytes=32 * MIB)
    host.disks["vdb"].sign("ext4")
    host.disks["vdb"].spans = 4 * MIB
    host.before["mount"] = lambda: host.failures.update({method: Unavailable("it hangs")})
    await node.staging.stage(volume(content=Content.USED))
    assert STAGING in host.mount_points()
    (ailment,) = node.health.of("pvc-1")
    assert (ailment.reason, "it hangs" in ailment.message) == (Reason.GROWTH_FAILED, True)
    await node.staging.stage(volume(content=Content.USED))
    assert node.health.of("pvc-1") == ()
    assert host.disks["vdb"].spans == 32 * MIB


async def test_an_expansion_whose_file_system_does_not_grow_fails_and_is_told_until_one_succeeds(
    host: FakeHost, node: FakeNode
) -> None:
    await node.staging.stage(volume())
    host.change("vdb", size_bytes=16 * MIB)
    host.failures["grow"] = Internal("resize2fs ended with 1")
    with pytest.raises(Internal, match="resize2fs ended with 1"):
        await node.growing.expand(expansion())
    assert [each.reason for each in node.health.of("pvc-1")] == [Reason.GROWTH_FAILED]
    assert await node.growing.expand(expansion()) == 16 * MIB
    assert node.health.of("pvc-1") == ()
