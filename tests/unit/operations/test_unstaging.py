"""Unstaging on a fake host: what is unmounted, what is refused, and when a disk counts as released."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.errors import FailedPrecondition, Unavailable
from tests.fakes.host import FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode, volume

pytestmark = pytest.mark.looptime  # waiting costs nothing


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(FakeHost(), disk_wait_seconds=0.0)


async def test_unstage_unmounts_every_layer_and_flushes(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    node.host.mount_elsewhere(disk, STAGING)
    node.host.calls.clear()
    await node.unstage()
    assert node.host.mounts == []
    assert node.host.calls == [f"unmount {STAGING}", f"unmount {STAGING}", "flush vdb"]
    await node.unstage()


async def test_unstage_refuses_while_the_volume_is_mounted_elsewhere_and_leaves_it_staged(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    node.host.mount_elsewhere(disk, "/somewhere")
    with pytest.raises(FailedPrecondition, match="/somewhere"):
        await node.unstage()
    assert STAGING in node.host.mount_points()


async def test_unstage_of_a_raw_volume_finds_its_disk_by_the_record(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume(block=True))
    disk.opened_exclusively = True
    with pytest.raises(FailedPrecondition, match="still in use"):
        await node.unstage()
    disk.opened_exclusively = False
    await node.unstage()
    assert node.host.calls == ["flush vdb"]


async def test_unstage_waits_for_the_kernel_to_release_the_disk(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    disk.opened_exclusively = True
    node.host.before["in_use"] = lambda: node.host.before.update(
        in_use=lambda: setattr(disk, "opened_exclusively", False)
    )
    await node.unstage()
    assert node.host.calls[-1] == "flush vdb"


async def test_unstage_of_a_volume_never_staged_here_is_fine(node: FakeNode) -> None:
    node.host.plug("vdb", serial="somebody's")
    await node.unstage("unknown")
    assert node.host.calls == []


async def test_unstage_is_fine_when_the_disk_has_left(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    del node.host.disks["vdb"]
    await node.unstage()
    assert disk.shown.number == DeviceNumber(253, 1)
    assert node.host.mounts == []


async def test_unstage_fails_as_long_as_something_holds_the_disk(node: FakeNode) -> None:
    disk = node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    disk.opened_exclusively = True
    with pytest.raises(FailedPrecondition, match="still in use, perhaps in another mount namespace"):
        await node.unstage()
    node.host.change("vdb", holders=("dm-0",))
    with pytest.raises(FailedPrecondition, match="still in use by dm-0"):
        await node.unstage()


async def test_unstage_fails_when_what_was_written_cannot_be_put_on_the_disk(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    node.host.failures["flush"] = Unavailable("I/O error")
    with pytest.raises(Unavailable):
        await node.unstage()
    await node.unstage()
    assert node.host.calls[-1] == "flush vdb"


async def test_unstage_of_what_is_busy_fails_and_does_not_say_that_the_disk_is_free(node: FakeNode) -> None:
    node.host.plug("vdb", serial=SERIAL).sign("ext4")
    await node.staging.stage(volume())
    node.host.busy.add(STAGING)
    with pytest.raises(FailedPrecondition, match="busy"):
        await node.unstage()
    assert "flush vdb" not in node.host.calls
