"""How many volumes a node can have, from what is plugged and what still can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.limits import MOST_DISKS, UNKNOWN, DiskLimit, Room, most_volumes
from kubevirt_csi.domain.serials import new_serial
from kubevirt_csi.domain.volumes import Bus

PORTS_AND_SCSI = Room(scsi=True, free_ports=6)
ONLY_PORTS = Room(scsi=False, free_ports=6)


def disk(name: str, *, serial: str = "", bus: Bus | None = Bus.VIRTIO) -> Disk:
    return Disk(
        name=name, path=f"/dev/{name}", number=DeviceNumber(8, hash(name)), size_bytes=1, serial=serial, bus=bus
    )


ROOT, CLOUD_INIT, LOOP = disk("vda"), disk("sr0", bus=Bus.SCSI), disk("loop0", bus=None)
OURS = (disk("sda", serial=new_serial(), bus=Bus.SCSI), disk("vdb", serial=new_serial()))


@pytest.mark.parametrize(
    ("limit", "room", "expected"),
    [
        pytest.param("auto", PORTS_AND_SCSI, MOST_DISKS - 2, id="scsi"),
        pytest.param("auto", ONLY_PORTS, 6 + 2, id="only ports"),
        pytest.param("ports", PORTS_AND_SCSI, 6 + 2, id="ports asked for"),
        pytest.param("auto", Room(scsi=False, free_ports=None), UNKNOWN, id="nothing known"),
        pytest.param("ports", Room(scsi=True, free_ports=None), UNKNOWN, id="ports not known"),
        pytest.param(24, ONLY_PORTS, 24 - 2, id="a number"),
        pytest.param("ports", Room(scsi=True, free_ports=0), 2, id="no port left"),
        pytest.param(2, ONLY_PORTS, 1, id="less than there are already"),
    ],
)
def test_the_bound_is_what_is_ours_and_what_can_still_come(limit: DiskLimit, room: Room, expected: int) -> None:
    assert most_volumes([ROOT, CLOUD_INIT, LOOP, *OURS], room, limit=limit) == expected


@pytest.mark.parametrize("limit", ["auto", 24])
def test_the_bound_is_the_same_before_and_after_our_volumes_come(limit: DiskLimit) -> None:
    before = most_volumes([ROOT, CLOUD_INIT], PORTS_AND_SCSI, limit=limit)
    assert most_volumes([ROOT, CLOUD_INIT, *OURS], PORTS_AND_SCSI, limit=limit) == before


def test_a_port_that_a_volume_takes_leaves_the_bound_as_it_was() -> None:
    before = most_volumes([ROOT], Room(scsi=True, free_ports=6), limit="ports")
    assert most_volumes([ROOT, OURS[1]], Room(scsi=True, free_ports=5), limit="ports") == before


def test_zero_is_never_said_of_a_full_node_since_it_would_mean_any_number() -> None:
    assert most_volumes([ROOT], Room(scsi=False, free_ports=0), limit="auto") == 1


def test_a_volume_of_two_paths_is_one_volume_that_takes_two_places() -> None:
    paths = (OURS[0], replace(OURS[0], name="sdb", number=DeviceNumber(8, 16)))
    over = replace(paths[0], name="dm-0", paths=paths)
    assert most_volumes([*paths, over], PORTS_AND_SCSI, limit=10) == 1 + 8
