"""Finding the volume's disk: waiting, rescanning, and never taking the next best one."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition, Unavailable
from kubevirt_csi.operations.locating import RESCAN_AFTER_SECONDS, Locating
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
    host.plug("sda", serial="", bus=Bus.SCSI)
    host.plug("loop0", serial="")
    host.change("loop0", bus=None)
    seen = r"/dev/vda \(serial root, bus virtio, 8388608 bytes\), /dev/sda \(serial unknown, bus scsi, 8388608 bytes\)"
    with pytest.raises(Unavailable, match=rf"pvc-1 .* serial s1 within 20 s and a rescan. Disks seen: {seen}. Look at"):
        await locating.disk(volume_id="pvc-1", serial="s1", wait_seconds=20)
    assert host.calls == ["rescan"]
    assert 20 <= asyncio.get_running_loop().time() <= 21


async def test_two_disks_with_one_serial_are_refused_and_both_are_named(host: FakeHost, locating: Locating) -> None:
    host.plug("vdb", serial="s1")
    host.plug("vdc", serial="s1")
    with pytest.raises(FailedPrecondition, match=r"/dev/vdb .*/dev/vdc"):
        await locating.disk(volume_id="pvc-1", serial="s1")


async def test_the_multipath_map_over_all_disks_with_the_serial_is_the_disk(host: FakeHost, locating: Locating) -> None:
    legs = [host.plug(name, serial="s1", bus=Bus.SCSI) for name in ("sda", "sdb")]
    host.multipath("dm-0", *legs)
    found = await locating.disk(volume_id="pvc-1", serial="s1")
    assert (found.name, [path.name for path in found.paths]) == ("dm-0", ["sda", "sdb"])


async def test_a_disk_with_the_serial_beside_the_multipath_map_is_refused(host: FakeHost, locating: Locating) -> None:
    legs = [host.plug(name, serial="s1", bus=Bus.SCSI) for name in ("sda", "sdb")]
    host.multipath("dm-0", *legs)
    host.plug("sdc", serial="s1", bus=Bus.SCSI)
    with pytest.raises(FailedPrecondition, match=r"2 disks .*/dev/dm-0 \(.*over /dev/sda, /dev/sdb\), /dev/sdc"):
        await locating.disk(volume_id="pvc-1", serial="s1")


async def test_two_volumes_whose_serials_virtio_cuts_to_the_same_are_refused(
    host: FakeHost, locating: Locating
) -> None:
    for name in ("vdb", "vdc"):
        host.plug(name, serial=OLD_SERIAL[:20])
    with pytest.raises(FailedPrecondition, match=r"/dev/vdb .*/dev/vdc"):
        await locating.disk(volume_id="pvc-1", serial=OLD_SERIAL)


@pytest.mark.looptime
async def test_a_serial_that_can_be_read_only_after_a_rescan_is_found(host: FakeHost, locating: Locating) -> None:
    host.plug("sdb", serial="", bus=Bus.SCSI)
    host.before["rescan"] = lambda: host.change("sdb", serial="s1")
    assert (await locating.disk(volume_id="pvc-1", serial="s1")).name == "sdb"
    assert host.calls == ["rescan"]
    assert asyncio.get_running_loop().time() == RESCAN_AFTER_SECONDS


@pytest.mark.looptime
@pytest.mark.parametrize("seconds", [1, 3, 29])
async def test_a_serial_that_the_disk_shows_late_is_found(host: FakeHost, locating: Locating, seconds: int) -> None:
    async def answer_late() -> None:
        await asyncio.sleep(seconds)
        host.change("sdb", serial="s1")

    host.plug("sdb", serial="", bus=Bus.SCSI)
    late = asyncio.create_task(answer_late())
    assert (await locating.disk(volume_id="pvc-1", serial="s1")).name == "sdb"
    await late
    assert host.calls == ["rescan"] * (seconds > RESCAN_AFTER_SECONDS)


@pytest.mark.looptime
async def test_the_first_look_again_comes_after_50_ms_at_most(host: FakeHost, locating: Locating) -> None:
    looks: list[float] = []

    def look() -> None:
        looks.append(asyncio.get_running_loop().time())
        host.before["all"] = look

    look()
    with pytest.raises(Unavailable):
        await locating.disk(volume_id="pvc-1", serial="s1", wait_seconds=10)
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks[1:])]
    assert 0 < pauses[0] <= 0.05
    assert max(pauses) <= 1.0
    assert len(looks) < 40


async def test_a_long_serial_is_found_by_its_first_twenty_characters_on_virtio(
    host: FakeHost, locating: Locating
) -> None:
    host.plug("vdb", serial=OLD_SERIAL[:20])
    assert (await locating.disk(volume_id="pvc-1", serial=OLD_SERIAL)).name == "vdb"


async def test_a_disk_of_another_name_is_found_after_a_reboot(host: FakeHost, locating: Locating) -> None:
    host.plug("sdb", serial="other", bus=Bus.SCSI)
    host.plug("sdc", serial="s1", bus=Bus.SCSI)
    assert (await locating.disk(volume_id="pvc-1", serial="s1")).name == "sdc"
