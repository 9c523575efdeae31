"""Finding the volume's disk: waiting, rescanning, and never taking the next best one."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition, Unavailable
from kubevirt_csi.operations.locating import Locating
from tests.fakes.host import FakeHost

OLD_SERIAL = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def locating(host: FakeHost) -> Locating:
    return Locating(disks=host, mounts=host, places=host)


@pytest.mark.looptime
async def test_a_disk_that_comes_late_is_found_soon_after(host: FakeHost, locating: Locating) -> None:
    async def come_late() -> None:
        await asyncio.sleep(5)
        host.plug("sdb", serial="s1", bus=Bus.SCSI)

    late = asyncio.create_task(come_late())
    found = await locating.disk(volume_id="pvc-1", serial="s1")
    await late
    assert found.name == "sdb"
    assert 5 <= asyncio.get_running_loop().time() <= 6


@pytest.mark.looptime
async def test_a_disk_that_is_there_is_found_without_waiting_or_rescanning(host: FakeHost, locating: Locating) -> None:
    host.plug("sdb", serial="s1", bus=Bus.SCSI)
    await locating.disk(volume_id="pvc-1", serial="s1")
    assert asyncio.get_running_loop().time() == 0
    assert host.calls == []


@pytest.mark.looptime
async def test_a_disk_that_never_comes_is_rescanned_for_once_and_the_error_names_what_was_seen(
    host: FakeHost, locating: Locating
) -> None:
    host.plug("vda", serial="root")
    with pytest.raises(Unavailable, match=r"pvc-1 .* serial s1 .*/dev/vda \(serial root\)"):
        await locating.disk(volume_id="pvc-1", serial="s1", wait_seconds=20)
    assert host.calls == ["rescan"]
    assert 20 <= asyncio.get_running_loop().time() <= 21


async def test_two_disks_with_one_serial_are_refused_and_both_are_named(host: FakeHost, locating: Locating) -> None:
    host.plug("vdb", serial="s1")
    host.plug("vdc", serial="s1")
    with pytest.raises(FailedPrecondition, match=r"/dev/vdb .*/dev/vdc"):
        await locating.disk(volume_id="pvc-1", serial="s1")


async def test_a_long_serial_is_found_by_its_first_twenty_characters_on_virtio(
    host: FakeHost, locating: Locating
) -> None:
    host.plug("vdb", serial=OLD_SERIAL[:20])
    assert (await locating.disk(volume_id="pvc-1", serial=OLD_SERIAL)).name == "vdb"


async def test_a_disk_of_another_name_is_found_after_a_reboot(host: FakeHost, locating: Locating) -> None:
    host.plug("sdb", serial="other", bus=Bus.SCSI)
    host.plug("sdc", serial="s1", bus=Bus.SCSI)
    assert (await locating.disk(volume_id="pvc-1", serial="s1")).name == "sdc"
