"""Disks out of a folder that looks like sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.host.disks import SysfsDisks, unit_serial_number

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


def page(serial: str, *, length: int | None = None, code: int = 0x80) -> bytes:
    return bytes((0, code)) + (len(serial) if length is None else length).to_bytes(2, "big") + serial.encode()


class Sysfs:
    """A sysfs tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "block").mkdir(parents=True)

    def disk(self, name: str, *, number: str = "253:16", sectors: int = 2048) -> Path:
        folder = self.root / "block" / name
        (folder / "holders").mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        (folder / "size").write_text(f"{sectors}\n")
        (folder / "ro").write_text("0\n")
        return folder


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


@pytest.fixture
def disks(sysfs: Sysfs, tmp_path: Path) -> SysfsDisks:
    return SysfsDisks(sysfs_root=sysfs.root, dev_root=tmp_path / "dev")


async def test_a_virtio_disk_shows_its_serial_number_size_and_path(
    sysfs: Sysfs, disks: SysfsDisks, tmp_path: Path
) -> None:
    (sysfs.disk("vdb") / "serial").write_text(UID[:20])
    (disk,) = await disks.all()
    assert (disk.serial, disk.bus) == (UID[:20], Bus.VIRTIO)
    assert (disk.number, disk.size_bytes) == (DeviceNumber(253, 16), 1024 * 1024)
    assert disk.path == str(tmp_path / "dev" / "vdb")


async def test_a_scsi_disk_shows_the_serial_of_its_product_data(sysfs: Sysfs, disks: SysfsDisks) -> None:
    device = sysfs.disk("sdb") / "device"
    device.mkdir()
    (device / "vpd_pg80").write_bytes(page(UID))
    (disk,) = await disks.all()
    assert (disk.serial, disk.bus) == (UID, Bus.SCSI)


async def test_a_disk_without_a_serial_is_seen_but_belongs_to_nobody(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.disk("loop0")
    (disk,) = await disks.all()
    assert (disk.serial, disk.bus) == ("", None)


async def test_partitions_holders_and_write_protection_are_seen(sysfs: Sysfs, disks: SysfsDisks) -> None:
    folder = sysfs.disk("vdb")
    (folder / "vdb1").mkdir()
    (folder / "vdb1" / "partition").write_text("1\n")
    (folder / "holders" / "dm-0").mkdir()
    (folder / "ro").write_text("1\n")
    (disk,) = await disks.all()
    assert (disk.partitions, disk.holders, disk.read_only) == (("vdb1",), ("dm-0",), True)


async def test_a_disk_that_vanishes_while_it_is_read_is_left_out(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.disk("vdb")
    (sysfs.disk("vdc") / "size").unlink()
    assert [disk.name for disk in await disks.all()] == ["vdb"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(page(UID), UID, id="whole"),
        pytest.param(page("abc   "), "abc", id="padded with spaces"),
        pytest.param(page("abc\0\0"), "abc", id="padded with zeroes"),
        pytest.param(page("abcdef", length=3), "abc", id="more bytes than the length says"),
        pytest.param(page("abc", length=20), "", id="cut short"),
        pytest.param(page("abc", code=0x83), "", id="another page"),
        pytest.param(page(""), "", id="empty"),
        pytest.param(b"\0\x80", "", id="no header"),
        pytest.param(b"\0\x80\0\x02\xff\xfe", "", id="not text"),
    ],
)
def test_the_length_in_the_page_decides(raw: bytes, expected: str) -> None:
    assert unit_serial_number(raw) == expected


async def test_a_rescan_asks_every_scsi_host(sysfs: Sysfs, disks: SysfsDisks) -> None:
    scans = [sysfs.root / "class" / "scsi_host" / f"host{n}" / "scan" for n in range(2)]
    for scan in scans:
        scan.parent.mkdir(parents=True)
        scan.touch()
    await disks.rescan()
    assert [scan.read_text() for scan in scans] == ["- - -"] * 2


async def test_a_rescan_without_scsi_hosts_is_fine(disks: SysfsDisks) -> None:
    await disks.rescan()


async def test_a_path_that_is_no_device_node_is_not_opened(sysfs: Sysfs, disks: SysfsDisks, tmp_path: Path) -> None:
    (sysfs.disk("vdb") / "serial").write_text("s1")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "vdb").write_bytes(bytes(1024 * 1024))
    (disk,) = await disks.all()
    with pytest.raises(Unavailable, match="is not the device node"):
        async with disks.opened(disk):
            pass


async def test_a_missing_device_node_is_named(sysfs: Sysfs, disks: SysfsDisks) -> None:
    (sysfs.disk("vdb") / "serial").write_text("s1")
    (disk,) = await disks.all()
    with pytest.raises(Unavailable, match="cannot be opened"):
        async with disks.opened(disk):
            pass
