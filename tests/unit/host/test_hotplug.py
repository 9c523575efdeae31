"""Places for more disks, out of a folder that looks like sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubevirt_csi.domain.limits import Room
from kubevirt_csi.host.hotplug import SysfsHotplug


def slots(sysfs: Path, *adapters: str | None) -> None:
    for number, adapter in enumerate(adapters):
        slot = sysfs / "bus" / "pci" / "slots" / f"0-{number}"
        slot.mkdir(parents=True)
        (slot / "address").write_text(f"0000:0{number}:00\n")
        if adapter is not None:
            (slot / "adapter").write_text(f"{adapter}\n")


def scsi_hosts(sysfs: Path, *drivers: str) -> None:
    for number, driver in enumerate(drivers):
        host = sysfs / "class" / "scsi_host" / f"host{number}"
        host.mkdir(parents=True)
        (host / "proc_name").write_text(f"{driver}\n")


async def test_only_slots_that_take_plugging_and_have_nothing_in_them_are_free(tmp_path: Path) -> None:
    slots(tmp_path, "1", "0", None, "0")
    assert await SysfsHotplug(sysfs_root=tmp_path).room() == Room(scsi=False, free_ports=2)


@pytest.mark.parametrize(
    ("drivers", "expected"), [(("ahci", "virtio_scsi"), True), (("ahci",), False), ((), False)], ids=str
)
async def test_disks_are_plugged_into_virtio_scsi_only(
    tmp_path: Path, drivers: tuple[str, ...], expected: bool
) -> None:
    scsi_hosts(tmp_path, *drivers)
    assert (await SysfsHotplug(sysfs_root=tmp_path).room()).scsi is expected


async def test_a_node_that_shows_no_slots_does_not_know_its_ports(tmp_path: Path) -> None:
    slots(tmp_path, None)
    assert (await SysfsHotplug(sysfs_root=tmp_path).room()).free_ports is None
