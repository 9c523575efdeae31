"""Disks that come late or never, leave under a mount, return, or give their name to another disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from kubevirt_csi.domain.volumes import Bus, Content
from tests.guest.disks import Disks
from tests.guest.node import GuestNode
from tests.guest.volumes import MIB, Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def never_plugged(node: GuestNode) -> AsyncIterator[tuple[Volume, asyncio.Task[None]]]:
    """A volume whose disk never comes, and the call that waits for it while the other tests run."""
    volume = Volume(node=node)
    call = asyncio.create_task(volume.stage())
    yield volume, call
    await asyncio.wait([call])


@pytest.mark.parametrize("bus", Bus)
async def test_a_disk_that_is_plugged_after_the_call_is_waited_for(node: GuestNode, disks: Disks, bus: Bus) -> None:
    volume = Volume(node=node, bus=bus, fs_type=None)
    async with volume.being_staged() as call:
        assert not call.done()
        disk = await disks.plug(volume)
    call.result()
    assert disk.is_zero()


@pytest.mark.parametrize(("fs_type", "bus"), [("ext4", Bus.VIRTIO), ("xfs", Bus.SCSI), (None, Bus.VIRTIO)])
async def test_a_disk_that_left_under_its_mount_is_unpublished_and_unstaged(
    node: GuestNode, disks: Disks, bus: Bus, fs_type: str | None
) -> None:
    volume = Volume(node=node, bus=bus, fs_type=fs_type, size=320 * MIB)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("before")
    await disks.unplug(disk)
    await volume.unpublish(seconds=30)
    await volume.unstage(seconds=30)
    assert await node.mount_points() == []


@pytest.mark.parametrize("bus", Bus)
async def test_a_disk_that_left_and_returned_is_mounted_anew_with_what_was_on_it(
    node: GuestNode, disks: Disks, bus: Bus
) -> None:
    volume = Volume(node=node, bus=bus)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("before")
    await disks.unplug(disk)
    returned = await disks.plug(volume, image=disk.image)
    await volume.stage()
    await volume.publish("b")
    assert await volume.read("b") == "before"
    assert await node.made(returned.device) == ["mkfs.ext4"] * (returned.device == disk.device)


@pytest.mark.parametrize("bus", Bus)
async def test_another_disk_under_the_same_name_is_never_used(node: GuestNode, disks: Disks, bus: Bus) -> None:
    volume = Volume(node=node, bus=bus, content=Content.USED)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("old")
    await volume.unpublish()
    await volume.unstage()
    await disks.unplug(disk)

    other = Volume(node=node, bus=bus)
    swapped = await disks.plug(other)
    assert swapped.name == disk.name
    async with volume.being_staged() as call:
        assert swapped.is_zero()
        await other.stage()
        await other.publish()
        await other.write("new")
        assert not call.done()
        returned = await disks.plug(volume, image=disk.image)
    call.result()
    await volume.publish()
    assert (await volume.read(), await other.read()) == ("old", "new")
    assert await node.made(returned.device) == []


async def test_a_mount_of_a_disk_that_left_is_never_shown_as_another_volume(node: GuestNode, disks: Disks) -> None:
    volume = Volume(node=node)
    disk = await disks.plug(volume)
    await volume.stage()
    await disks.unplug(disk)
    other = Volume(node=node, id=volume.id)
    swapped = await disks.plug(other)
    await other.stage()
    await other.publish()
    number = await node.sh(f"stat -c %t:%T {swapped.device}")
    major, minor = (int(part, 16) for part in number.strip().split(":"))
    table = await node.sh(f"grep ' {other.target('a')} ' /proc/self/mountinfo")
    assert f" {major}:{minor} / " in table
    assert "data" not in (await node.sh(f"ls {other.target('a')}")).split()


async def test_a_disk_that_never_comes_is_named_with_those_that_are_there(
    never_plugged: tuple[Volume, asyncio.Task[None]],
) -> None:
    volume, call = never_plugged
    with pytest.raises(GRPCError) as refused:
        await call
    assert refused.value.status is Status.UNAVAILABLE
    text = str(refused.value.message)
    assert f"volume {volume.id}" in text
    assert f"serial {volume.serial}" in text
    assert "/dev/vda (serial lab-root" in text
    assert "/dev/vdb (serial lab-seed" in text
