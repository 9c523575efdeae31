"""What sysfs tells about a device, shown by plain files; what only a device tells is in the host tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.host.devicehealth import DeviceHealth, in_vain

SDA = DeviceNumber(8, 0)


def reasons(ailments: list[Ailment]) -> list[Reason]:
    return [ailment.reason for ailment in ailments]


class Sysfs:
    """A disk sda with number 8:0."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("block/sda/dev", "8:0\n")
        self.health = DeviceHealth(sysfs_root=root, dev_root=root / "dev", patience_seconds=0)

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def ailments(self, number: DeviceNumber = SDA) -> list[Ailment]:
        return list(self.health.of(number))


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.mark.parametrize("state", ["offline", "transport-offline"])
def test_a_scsi_disk_that_the_kernel_has_given_up_is_offline_and_not_asked(sysfs: Sysfs, state: str) -> None:
    sysfs.write("block/sda/device/state", f"{state}\n")
    [ailment] = sysfs.ailments()
    assert (ailment.severity, ailment.reason) == (Severity.INACCESSIBLE, Reason.DEVICE_OFFLINE)
    assert f"disk sda (state {state})" in ailment.message


@pytest.mark.parametrize("state", ["running", "blocked"])
def test_a_scsi_disk_in_any_other_state_is_asked_itself(sysfs: Sysfs, state: str) -> None:
    sysfs.write("block/sda/device/state", f"{state}\n")
    [ailment] = sysfs.ailments()
    assert "cannot be read" in ailment.message


def test_a_number_that_no_disk_has_is_of_one_that_left(sysfs: Sysfs) -> None:
    [ailment] = sysfs.ailments(DeviceNumber(8, 16))
    assert ailment.reason is Reason.DEVICE_GONE
    assert "disk 8:16 has left this node" in ailment.message


def test_a_plain_file_in_place_of_the_device_node_is_not_read(sysfs: Sysfs) -> None:
    sysfs.write("dev/sda", "x" * 8192)
    assert reasons(sysfs.ailments()) == [Reason.DEVICE_GONE]


@pytest.mark.parametrize(
    "text",
    ["100 0 800 5 40 0 320 9 {in_flight} 14 14", "100 0 800 5 40 0 320 9 {in_flight} 14 14 0 0 0 0 3 1"],
    ids=["before Linux 4.18", "since Linux 5.5"],
)
def test_a_disk_that_others_wait_for_in_vain_is_not_read_as_well(sysfs: Sysfs, text: str) -> None:
    sysfs.write("block/sda/mq/0/nr_tags", "256")
    sysfs.write("block/sda/stat", text.format(in_flight=2))
    [ailment] = sysfs.ailments()
    assert (ailment.severity, ailment.reason) == (Severity.INACCESSIBLE, Reason.NOT_RESPONDING)
    assert "disk sda has 2 requests under way and has completed none" in ailment.message
    sysfs.write("block/sda/stat", text.format(in_flight=0))
    assert reasons(sysfs.ailments()) == [Reason.DEVICE_GONE]


def test_a_kind_of_disk_that_may_count_wrongly_is_asked_itself(sysfs: Sysfs) -> None:
    sysfs.write("block/sda/stat", "100 0 800 5 40 0 320 9 2 14 14")
    assert reasons(sysfs.ailments()) == [Reason.DEVICE_GONE]


def test_a_disk_that_completes_requests_is_not_stuck_however_many_wait() -> None:
    assert in_vain(iter([(100, 7), (101, 7)]).__next__, seconds=60) == 0


def test_a_disk_that_nobody_waits_for_is_not_stuck() -> None:
    assert in_vain(iter([(100, 0), (100, 0)]).__next__, seconds=60) == 0
