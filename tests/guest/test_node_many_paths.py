"""More than one device for one serial, and devices that somebody has built on a disk."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from kubevirt_csi.domain.volumes import Bus
from tests.guest.disks import Disks
from tests.guest.exported import exported
from tests.guest.node import GuestNode
from tests.guest.volumes import Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


async def refusal(volume: Volume) -> str:
    """The text with which staging is refused for good."""
    with pytest.raises(GRPCError) as refused:
        await volume.stage()
    assert refused.value.status is Status.FAILED_PRECONDITION
    return str(refused.value.message)


@pytest.mark.parametrize("second", Bus)
async def test_two_disks_with_one_serial_are_refused_and_both_are_named(
    node: GuestNode, disks: Disks, second: Bus
) -> None:
    volume = Volume(node=node)
    pair = [await disks.plug(volume), await disks.plug(volume, bus=second)]
    text = await refusal(volume)
    assert all(disk.device in text for disk in pair)
    assert all(disk.is_zero() for disk in pair)


@asynccontextmanager
async def multipath(node: GuestNode, paths: Sequence[str], *, sectors: int) -> AsyncIterator[str]:
    """A map over the paths as multipath-tools makes it; yields the name of its device."""
    numbers = [(await node.sh(f"cat /sys/block/{path}/dev")).strip() for path in paths]
    table = f"0 {sectors} multipath 0 0 1 1 round-robin 0 {len(paths)} 1 {' '.join(f'{n} 1' for n in numbers)}"
    await node.sh(f"dmsetup create mpatha --uuid mpath-3600a0b80000f --table '{table}'")
    try:
        yield (await node.sh("basename $(readlink -f /dev/mapper/mpatha)")).strip()
    finally:
        await node.clear()
        await node.sh("dmsetup remove --retry mpatha")


async def test_two_paths_are_refused_until_one_map_is_on_top_of_both_and_then_the_map_is_used(
    node: GuestNode, disks: Disks
) -> None:
    base, volume = await disks.plug(Volume(node=node)), Volume(node=node)
    async with exported(node, base.device, serial=volume.serial, paths=2) as disk:
        text = await refusal(volume)
        assert all(device in text for device in disk.devices)
        async with multipath(node, disk.names[:1], sectors=disk.sectors):
            await refusal(volume)
        assert base.is_zero()
        async with multipath(node, disk.names, sectors=disk.sectors) as name:
            await volume.stage()
            await volume.publish()
            number = (await node.sh(f"cat /sys/block/{name}/dev")).strip()
            assert f" {number} / {volume.target('a')} " in await node.sh("cat /proc/self/mountinfo")
            await volume.write("through-both")
            await node.sh(f"echo offline > /sys/block/{disk.names[0]}/device/state")
            await volume.write("through-one")
            assert await volume.read() == "through-one"
            await volume.unpublish()
            await volume.unstage()
            assert await node.made(f"/dev/{name}") == ["mkfs.ext4"]


async def test_a_map_that_somebody_made_on_the_disk_is_named_and_nothing_is_written(
    node: GuestNode, disks: Disks
) -> None:
    volume = Volume(node=node)
    disk = await disks.plug(volume)
    sectors = volume.size // 512
    create = f"modprobe dm-mod; dmsetup create foreign --uuid LVM-foreign --table '0 {sectors} linear {disk.device} 0'"
    await node.sh(create)
    try:
        assert "foreign" in await refusal(volume)
    finally:
        await node.sh("dmsetup remove --retry foreign")
    assert disk.is_zero()
    await volume.stage()


async def test_a_partitioned_disk_is_refused_and_its_partition_is_named(node: GuestNode, disks: Disks) -> None:
    volume = Volume(node=node)
    image = disks.image(volume.size)
    with image.open("r+b") as file:
        file.seek(446)  # the table of a DOS label: one partition of type 83 from 1 MiB to the end
        file.write(struct.pack("<BBBBBBBBII", 0, 0, 2, 0, 0x83, 0, 0, 0, 2048, volume.size // 512 - 2048))
        file.seek(510)
        file.write(b"\x55\xaa")
    before = image.read_bytes()
    disk = await disks.plug(volume, image=image)
    assert f"{disk.name}1" in await refusal(volume)
    assert image.read_bytes() == before
