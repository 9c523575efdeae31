"""Virtio disks that are slow or answer with errors: here it is the hypervisor that does it, with nothing between.

What hangs, flickers or leaves in the middle is in ``test_node_bad_disks``, with scsi disks.
"""

from __future__ import annotations

from functools import partial

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from kubevirt_csi.domain.volumes import Bus
from tests.guest.disks import Disks, PluggedDisk
from tests.guest.node import GuestNode
from tests.guest.test_node_bad_disks import done, outlives_a_failure, serves, written
from tests.guest.volumes import MIB, Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


async def plugged(node: GuestNode, disks: Disks) -> tuple[Volume, PluggedDisk]:
    volume = Volume(node=node, bus=Bus.VIRTIO)
    return volume, await disks.plug(volume)


async def test_a_slow_virtio_disk_is_formatted_once_however_often_kubelet_asks(node: GuestNode, disks: Disks) -> None:
    volume, disk = await plugged(node, disks)
    await disks.throttle(disk, MIB)
    assert set(await done(partial(volume.stage, seconds=3))) == {Status.DEADLINE_EXCEEDED}
    assert await node.made(disk.device) == ["mkfs.ext4"]
    await disks.throttle(disk, 0)
    await serves(volume)


async def test_errors_of_a_virtio_disk_never_make_it_blank_and_it_is_used_again_when_they_end(
    node: GuestNode, disks: Disks
) -> None:
    volume, disk = await plugged(node, disks)
    await written(volume)
    await disks.fail(disk, "read")
    with pytest.raises(GRPCError, match=disk.device) as failed:
        await volume.stage()
    assert failed.value.status is Status.UNAVAILABLE
    await disks.fail(disk)
    await volume.stage()
    await volume.publish()
    assert await volume.read() == "before"
    assert await node.made(disk.device) == ["mkfs.ext4"]


async def test_a_virtio_disk_that_refuses_the_mark_is_formatted_once_it_takes_it(node: GuestNode, disks: Disks) -> None:
    """The mark that mkfs was started comes first: a disk that cannot keep it is not touched by mkfs."""
    volume, disk = await plugged(node, disks)
    await disks.fail(disk, "write")
    with pytest.raises(GRPCError, match=disk.device):
        await volume.stage()
    assert await node.mount_points() == []
    assert disk.is_zero()
    await disks.fail(disk)
    await serves(volume)
    assert await node.made(disk.device) == ["mkfs.ext4"]


async def test_a_virtio_disk_that_fails_under_a_pod_is_told_as_ill_and_can_be_used_again(
    node: GuestNode, disks: Disks
) -> None:
    volume, disk = await plugged(node, disks)
    fails = partial(disks.fail, disk, "read", "write")
    await outlives_a_failure(volume, disk.device, fails=fails, works=partial(disks.fail, disk))
