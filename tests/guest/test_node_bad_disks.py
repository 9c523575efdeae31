"""Disks that are slow, answer with errors, or do not answer at all, while volumes are staged, used and taken away.

What may never happen is that an error is read as "blank"; what must happen is that everything goes on once the disk
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from tests.guest.disks import Disks
from tests.guest.driver import PROGRAMS_LOG
from tests.guest.exported import ExportedDisk, exported
from tests.guest.node import GuestNode
from tests.guest.volumes import MIB, Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

TRIES = 30
SCSI_DEBUG = "/sys/module/scsi_debug/parameters"

Change = Callable[[], Awaitable[None]]
"""What a test does to a disk."""


@asynccontextmanager
async def bad_disk(node: GuestNode, disks: Disks) -> AsyncIterator[tuple[Volume, ExportedDisk]]:
    """A volume whose disk does as the test says; it begins as a good and blank one."""
    volume = Volume(node=node)
    base = await disks.plug(Volume(node=node))
    async with exported(node, base.device, serial=volume.serial) as disk:
        yield volume, disk


async def done(call: Callable[[], Awaitable[None]]) -> list[Status]:
    """Asks as kubelet does, again and again; the codes of the attempts that did not succeed."""
    codes = []
    for _ in range(TRIES):
        try:
            await call()
        except GRPCError as error:
            codes.append(error.status)
        except TimeoutError:  # the client's own clock was first
            codes.append(Status.DEADLINE_EXCEEDED)
        else:
            return codes
    raise AssertionError(f"not done after {TRIES} attempts: {codes}")


async def written(volume: Volume) -> None:
    """A first life of the volume, on a disk that is still good."""
    await volume.stage()
    await volume.publish()
    await volume.write("before")
    await volume.unpublish()
    await volume.unstage()


@asynccontextmanager
async def slow_mkfs(volume: Volume, disk: ExportedDisk) -> AsyncIterator[asyncio.Task[None]]:
    """The volume is being staged, and its mkfs has begun and takes seconds."""
    await disk.delays(reads_ms=0, writes_ms=400)
    async with volume.being_staged() as call:
        await volume.node.until(f"grep -qs {disk.devices[0]} {PROGRAMS_LOG}")
        yield call


async def serves(volume: Volume) -> None:
    """It can be staged and published, and keeps what a pod writes."""
    await done(volume.stage)
    await volume.publish()
    await volume.write("after")
    assert await volume.read() == "after"


async def outlives_a_failure(volume: Volume, device: str, *, fails: Change, works: Change) -> None:
    """The disk fails under a pod: that is told, the volume can be taken away, and then be used again."""
    await volume.stage()
    await volume.publish()
    await volume.write("before")
    await fails()
    await volume.node.run(f"echo lost > {volume.target('a')}/lost; sync")
    assert await ill(volume)
    await volume.unpublish(seconds=30)
    await works()
    # What could not be written is told once, by the flush.
    assert set(await done(volume.unstage)) <= {Status.UNAVAILABLE}
    await volume.stage()
    await volume.publish()
    assert await volume.read() == "before"
    assert await volume.node.made(device) == ["mkfs.ext4"]


async def test_a_slow_disk_is_formatted_once_however_often_kubelet_asks(node: GuestNode, disks: Disks) -> None:
    async with bad_disk(node, disks) as (volume, disk):
        await disk.delays(reads_ms=10, writes_ms=60)
        assert set(await done(partial(volume.stage, seconds=3))) == {Status.DEADLINE_EXCEEDED}
        assert await node.made(disk.devices[0]) == ["mkfs.ext4"]


async def test_a_plugin_that_is_killed_during_a_slow_mkfs_comes_right(node: GuestNode, disks: Disks) -> None:
    async with bad_disk(node, disks) as (volume, disk):
        async with slow_mkfs(volume, disk) as call:
            await node.kill()
        assert isinstance(call.exception(), StreamTerminatedError)
        await disk.works()
        await node.start()
        await serves(volume)


async def test_a_disk_that_leaves_during_mkfs_is_formatted_anew_when_it_is_back(node: GuestNode, disks: Disks) -> None:
    async with bad_disk(node, disks) as (volume, disk):
        async with slow_mkfs(volume, disk) as call:
            await disk.leaves()
        failure = call.exception()
        assert isinstance(failure, GRPCError)
        assert volume.id in str(failure.message)
        assert await node.mount_points() == []
        await disk.works()
        devices = {disk.devices[0], await disk.returns()}
        await serves(volume)
        assert [made for device in devices for made in await node.made(device)] == ["mkfs.ext4"] * 2


async def test_errors_of_a_disk_never_make_it_blank_and_it_is_used_again_when_they_end(
    node: GuestNode, disks: Disks
) -> None:
    async with bad_disk(node, disks) as (volume, disk):
        await written(volume)
        await disk.fails()
        with pytest.raises(GRPCError, match=disk.devices[0]) as failed:
            await volume.stage()
        assert failed.value.status is Status.UNAVAILABLE
        await disk.refuses_writes()
        with pytest.raises(GRPCError, match=disk.devices[0]):
            await volume.stage()
        await disk.flickers(up_seconds=5, down_seconds=2)
        await done(volume.stage)
        await disk.works()
        await volume.publish()
        assert await volume.read() == "before"
        assert await node.made(disk.devices[0]) == ["mkfs.ext4"]


async def test_a_mkfs_that_met_errors_is_repeated_under_its_mark(node: GuestNode, disks: Disks) -> None:
    async with bad_disk(node, disks) as (volume, disk):
        await disk.refuses_writes_in_the_middle()
        await node.sh("dmesg -c")
        # It is mkfs that hears of it, or the flush after it: as the kernel gets to writing.
        with pytest.raises(GRPCError, match=f"(making ext4 on disk|flushing) {disk.devices[0]}"):
            await volume.stage()
        assert "lost async page write" in await node.sh("dmesg -c")
        await disk.works()
        await volume.stage()
        assert await node.made(disk.devices[0]) == ["mkfs.ext4"] * 2


async def test_a_disk_that_fails_under_a_pod_can_be_taken_away_and_used_again(node: GuestNode, disks: Disks) -> None:
    async with bad_disk(node, disks) as (volume, disk):
        await outlives_a_failure(volume, disk.devices[0], fails=disk.fails, works=disk.works)


async def test_a_hung_disk_is_told_as_ill_and_holds_up_its_own_volume_only(node: GuestNode, disks: Disks) -> None:
    other = Volume(node=node, fs_type=None)
    await disks.plug(other)
    async with bad_disk(node, disks) as (volume, disk):
        await volume.stage()
        await volume.publish()
        await volume.write("before")
        assert not await ill(volume)
        await disk.hangs()
        assert await ill(volume)
        await other.stage(seconds=20)
        await volume.unpublish(seconds=20)
        async with volume.being_unstaged() as call:
            await disk.works()
        call.result()
        assert await node.mount_points() == []


async def test_a_medium_error_is_never_taken_for_blank(node: GuestNode) -> None:
    async with scsi_debug(node) as serial:
        volume = Volume(node=node, serial=serial, size=32 * MIB)
        await node.sh(f"cd {SCSI_DEBUG}; echo 0 > medium_error_start; echo 2 > opts")
        with pytest.raises(GRPCError, match="/dev/sd") as failed:
            await volume.stage()
        assert failed.value.status is Status.UNAVAILABLE
        await node.sh(f"echo 0 > {SCSI_DEBUG}/opts")
        await volume.stage()
        await volume.unstage()


@asynccontextmanager
async def scsi_debug(node: GuestNode) -> AsyncIterator[str]:
    """The kernel's own faulty SCSI disk, of 64 MiB of memory; yields its unit serial number."""
    await node.sh("modprobe scsi_debug dev_size_mb=64")
    disk = "$(basename /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*:0/block/*)"
    try:
        await node.until(f"[ -b /dev/{disk} ]")
        yield (await node.sh(f"tail -c +5 /sys/block/{disk}/device/vpd_pg80")).strip()
    finally:
        await node.clear()
        await node.sh(f"echo 0 > {SCSI_DEBUG}/opts")
        await node.settled()
        await node.until("/usr/sbin/rmmod scsi_debug")


async def ill(volume: Volume) -> bool:
    """What the kubelet of today reads of the volume's health."""
    condition = (await volume.stats(seconds=20)).volume_condition
    assert condition is not None
    return condition.abnormal
