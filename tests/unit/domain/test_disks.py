"""Which disk is a volume's, among all that a node shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubevirt_csi.domain.disks import DeviceNumber, Disk, matching, numbered, showing
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition

SERIAL = "0123456789abcdef0123"


def disk(name: str, minor: int, *, serial: str = SERIAL, bus: Bus | None = Bus.SCSI) -> Disk:
    return Disk(name=name, path=f"/dev/{name}", number=DeviceNumber(8, minor), size_bytes=1024, serial=serial, bus=bus)


def over(*paths: Disk, name: str = "dm-0", minor: int = 0) -> Disk:
    """A multipath map as the host shows it."""
    return replace(paths[0], name=name, path=f"/dev/{name}", number=DeviceNumber(252, minor), paths=paths)


A, B, C = disk("sda", 0), disk("sdb", 16), disk("sdc", 32)


def test_no_disk_is_an_answer_that_may_change() -> None:
    assert matching([disk("sdz", 1, serial="other")], SERIAL) is None


def test_a_disk_on_a_bus_that_is_none_of_ours_has_nobody_s_serial() -> None:
    assert matching([disk("nvme0n1", 1, bus=None)], SERIAL) is None


def test_all_disks_with_the_serial_are_named_with_what_tells_them_apart() -> None:
    with pytest.raises(FailedPrecondition) as refused:
        matching([A, replace(B, size_bytes=2048)], SERIAL)
    assert f"/dev/sda (serial {SERIAL}, bus scsi, 1024 bytes)" in str(refused.value)
    assert f"/dev/sdb (serial {SERIAL}, bus scsi, 2048 bytes)" in str(refused.value)


def test_a_multipath_map_stands_for_its_paths() -> None:
    assert matching([A, B, over(A, B)], SERIAL) == over(A, B)


def test_a_multipath_map_with_one_path_left_is_still_the_disk() -> None:
    assert matching([A, over(A)], SERIAL) == over(A)


def test_a_map_over_some_of_the_disks_is_refused_with_the_one_that_is_left_over() -> None:
    assert showing([A, B, C, over(A, B)], SERIAL) == (C, over(A, B))
    with pytest.raises(FailedPrecondition, match=r"sdc.*dm-0"):
        matching([A, B, C, over(A, B)], SERIAL)


def test_a_map_over_another_disk_too_is_not_the_volume_s() -> None:
    stranger = disk("sdx", 64, serial="other")
    mixed = replace(over(A, stranger), serial="", bus=None)
    assert matching([A, stranger, mixed], SERIAL) == A


def test_two_maps_over_the_same_disks_are_refused() -> None:
    with pytest.raises(FailedPrecondition, match=r"dm-0.*dm-1"):
        matching([A, B, over(A, B), over(A, B, name="dm-1", minor=1)], SERIAL)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"serial": "other"}, id="serial"),
        pytest.param({"number": DeviceNumber(8, 99)}, id="number"),
        pytest.param({"size_bytes": 4096}, id="size"),
        pytest.param({"sequence": 7}, id="plugged in again"),
    ],
)
def test_a_change_of_a_disk_or_of_a_path_to_it_makes_another_disk(changed: dict[str, object]) -> None:
    other = replace(B, **changed)  # type: ignore[arg-type] # names fields of Disk
    assert B.identity != other.identity
    assert over(A, B).identity != over(A, other).identity
    assert over(A, B).identity == over(A, B).identity


def test_a_map_that_lost_a_path_is_another_disk() -> None:
    assert over(A, B).identity != over(A).identity


def test_a_number_finds_its_disk_and_no_other() -> None:
    assert numbered([A, B], DeviceNumber(8, 16)) == B
    assert numbered([A, B], DeviceNumber(8, 17)) is None
