"""Disks that grow while they are mounted, late, or while nobody looks."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from kubevirt_csi.domain.serials import new_serial
from kubevirt_csi.domain.volumes import Bus, Content
from tests.guest.disks import Disks
from tests.guest.exported import exported
from tests.guest.node import GuestNode
from tests.guest.volumes import MIB, Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


SECTOR = 512


async def megabytes(volume: Volume) -> int:
    """The size of the mounted file system, as a pod sees it."""
    return int(await volume.node.sh(f"df -P -m {volume.target('a')} | tail -n 1 | awk '{{print $2}}'"))


@pytest.mark.parametrize(("fs_type", "bus"), [("ext4", Bus.VIRTIO), ("xfs", Bus.SCSI)])
async def test_a_mounted_file_system_grows_with_its_disk(node: GuestNode, disks: Disks, fs_type: str, bus: Bus) -> None:
    volume = Volume(node=node, bus=bus, fs_type=fs_type, size=320 * MIB)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("before")
    small = await megabytes(volume)
    async with volume.being_expanded(640 * MIB) as call:
        assert not call.done()
        await disks.grow(disk, 640 * MIB)
    assert call.result() == 640 * MIB
    assert await megabytes(volume) > small + 250
    assert await volume.read() == "before"


async def test_a_disk_whose_growth_the_kernel_was_not_told_of_is_read_anew(node: GuestNode, disks: Disks) -> None:
    volume = Volume(node=node, size=64 * MIB)
    base = await disks.plug(replace(volume, size=256 * MIB, serial=new_serial()))
    async with exported(node, base.device, serial=volume.serial, sectors=volume.size // SECTOR) as disk:
        await volume.stage()
        await volume.publish()
        await disk.grows(256 * MIB // SECTOR)
        assert await volume.expand(256 * MIB) == 256 * MIB
        assert await megabytes(volume) > 200


async def test_a_raw_volume_has_its_new_size_at_once(node: GuestNode, disks: Disks) -> None:
    volume = Volume(node=node, fs_type=None)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await disks.grow(disk, 128 * MIB)
    assert await volume.expand(128 * MIB) == 128 * MIB
    assert int(await node.sh(f"blockdev --getsize64 {volume.target('a')}")) == 128 * MIB


async def test_a_disk_that_grew_while_it_was_away_is_filled_when_it_is_staged(node: GuestNode, disks: Disks) -> None:
    volume = Volume(node=node, content=Content.USED)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.unstage()
    await disks.unplug(disk)
    os.truncate(disk.image, 256 * MIB)
    await disks.plug(volume, image=disk.image)
    await volume.stage()
    await volume.publish()
    assert await megabytes(volume) > 200
