"""Disks out of a folder that looks like sysfs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.host.disks import SysfsDisks
from kubevirt_csi.host.sysfs import unit_serial_number

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


def page(serial: str, *, length: int | None = None, code: int = 0x80) -> bytes:
    return bytes((0, code)) + (len(serial) if length is None else length).to_bytes(2, "big") + serial.encode()


class Sysfs:
    """A sysfs tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "block").mkdir(parents=True)

    def virtio(self, name: str, serial: str, **attributes: Any) -> Path:
        folder = self.disk(name, **attributes)
        (folder / "serial").write_text(serial)
        return folder

    def scsi(self, name: str, raw: bytes | None, **attributes: Any) -> Path:
        """A SCSI disk with this product data page, or without one."""
        folder = self.disk(name, **attributes)
        (folder / "device").mkdir()
        (folder / "device" / "scsi_level").write_text("6\n")
        (folder / "device" / "rescan").touch()
        if raw is not None:
            (folder / "device" / "vpd_pg80").write_bytes(raw)
        return folder

    def mapped(self, name: str, *paths: str, uuid: str, label: str = "mpatha") -> Path:
        """A device-mapper device on top of these disks."""
        folder = self.disk(name, number=f"252:{name.removeprefix('dm-')}")
        for sub in ("dm", "slaves"):
            (folder / sub).mkdir()
        (folder / "dm" / "name").write_text(f"{label}\n")
        (folder / "dm" / "uuid").write_text(f"{uuid}\n")
        for path in paths:
            (folder / "slaves" / path).symlink_to(f"../../{path}")
            holders = self.root / "block" / path / "holders"
            (holders / name).symlink_to(f"../../{name}")
        return folder

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


async def test_a_scsi_disk_without_the_page_is_seen_as_one(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.scsi("sdb", None)
    (disk,) = await disks.all()
    assert (disk.serial, disk.bus) == ("", Bus.SCSI)


@pytest.mark.parametrize("link", ["", "../../vdc", "../../gone"], ids=["none", "another disk's", "stale"])
async def test_links_by_id_change_nothing(sysfs: Sysfs, disks: SysfsDisks, tmp_path: Path, link: str) -> None:
    sysfs.virtio("vdb", "s1", number="253:16")
    sysfs.virtio("vdc", "s2", number="253:32")
    by_id = tmp_path / "dev" / "disk" / "by-id"
    by_id.mkdir(parents=True)
    if link:
        (by_id / "virtio-s1").symlink_to(link)
    assert {disk.serial: disk.name for disk in await disks.all()} == {"s1": "vdb", "s2": "vdc"}


async def test_a_disk_of_a_mapper_s_name_is_found_below_its_folder(
    sysfs: Sysfs, disks: SysfsDisks, tmp_path: Path
) -> None:
    sysfs.virtio("cciss!c0d0", "s1")
    (disk,) = await disks.all()
    assert disk.path == str(tmp_path / "dev" / "cciss" / "c0d0")


async def test_a_multipath_map_has_its_paths_and_their_serial(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.scsi("sda", page(UID), number="8:0")
    sysfs.scsi("sdb", page(UID), number="8:16")
    sysfs.mapped("dm-0", "sda", "sdb", uuid="mpath-0QEMU_QEMU_HARDDISK")
    found = {disk.name: disk for disk in await disks.all()}
    over = found["dm-0"]
    assert (over.serial, over.bus, over.number) == (UID, Bus.SCSI, DeviceNumber(252, 0))
    assert [path.name for path in over.paths] == ["sda", "sdb"]
    assert over.holders == ()
    assert found["sda"].holders == ("dm-0 (mpatha, mpath-0QEMU_QEMU_HARDDISK)",)


async def test_what_else_is_on_a_path_is_on_the_map(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.scsi("sda", page(UID), number="8:0")
    sdb = sysfs.scsi("sdb", page(UID), number="8:16")
    sysfs.mapped("dm-0", "sda", "sdb", uuid="mpath-1")
    sysfs.mapped("dm-1", "sdb", uuid="LVM-abc", label="vg-lv")
    (sdb / "sdb1").mkdir()
    (sdb / "sdb1" / "partition").write_text("1\n")
    over = next(disk for disk in await disks.all() if disk.name == "dm-0")
    assert (over.holders, over.partitions) == (("dm-1 (vg-lv, LVM-abc)",), ("sdb1",))


async def test_a_map_whose_paths_differ_or_are_partitions_belongs_to_nobody(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.scsi("sda", page(UID), number="8:0")
    sysfs.scsi("sdb", page("another"), number="8:16")
    sysfs.mapped("dm-0", "sda", "sdb", uuid="mpath-1")
    assert {d.name: (d.serial, d.bus) for d in await disks.all()}["dm-0"] == ("", None)


@pytest.mark.parametrize("uuid", ["LVM-abc", "CRYPT-LUKS2-abc-data", "part1-mpath-1", ""])
async def test_other_mapped_devices_have_no_serial(sysfs: Sysfs, disks: SysfsDisks, uuid: str) -> None:
    sysfs.scsi("sda", page(UID), number="8:0")
    sysfs.mapped("dm-0", "sda", uuid=uuid)
    assert {d.name: (d.serial, d.paths) for d in await disks.all()}["dm-0"] == ("", ())


async def test_a_path_that_has_left_is_no_path_any_more(sysfs: Sysfs, disks: SysfsDisks) -> None:
    sysfs.scsi("sda", page(UID), number="8:0")
    folder = sysfs.mapped("dm-0", "sda", uuid="mpath-1")
    (folder / "slaves" / "sdb").symlink_to("../../sdb")
    over = next(disk for disk in await disks.all() if disk.name == "dm-0")
    assert (over.serial, [path.name for path in over.paths]) == (UID, ["sda"])


async def test_a_map_with_a_path_that_cannot_be_read_stays_known_but_is_nobody_s(
    sysfs: Sysfs, disks: SysfsDisks
) -> None:
    (sysfs.scsi("sda", page(UID), number="8:0") / "size").unlink()
    sysfs.mapped("dm-0", "sda", uuid="mpath-1")
    assert [(disk.name, disk.serial, disk.paths) for disk in await disks.all()] == [("dm-0", "", ())]


async def test_the_level_of_a_raid_on_a_disk_is_told(sysfs: Sysfs, disks: SysfsDisks) -> None:
    folder = sysfs.virtio("vdb", "s1")
    md = folder / "holders" / "md0" / "md"
    md.mkdir(parents=True)
    (md / "level").write_text("raid1\n")
    (disk,) = await disks.all()
    assert disk.holders == ("md0 (raid1)",)


async def test_a_serial_that_cannot_be_read_leaves_the_disk_visible(sysfs: Sysfs, disks: SysfsDisks) -> None:
    (sysfs.disk("vdb") / "serial").mkdir()
    (sysfs.scsi("sdb", None, number="8:16") / "device" / "vpd_pg80").mkdir()
    assert [(disk.name, disk.serial) for disk in await disks.all()] == [("sdb", ""), ("vdb", "")]


async def test_a_disk_that_does_not_answer_hides_only_itself_and_costs_one_thread(sysfs: Sysfs, tmp_path: Path) -> None:
    disks = SysfsDisks(sysfs_root=sysfs.root, dev_root=tmp_path / "dev", answer_seconds=0.05)
    stuck = sysfs.disk("vdb") / "serial"
    os.mkfifo(stuck)  # reading waits until somebody writes
    sysfs.virtio("vdc", "s2", number="253:32")
    for _ in range(3):
        assert [(disk.name, disk.serial, disk.mute) for disk in await disks.all()] == [
            ("vdb", "", True),
            ("vdc", "s2", False),
        ]
    assert [thread.name for thread in threading.enumerate() if "vdb" in thread.name] == ["asking vdb for its serial"]
    stuck.write_text("s1")


async def test_a_rescan_scans_every_host_and_asks_again_about_unused_disks_without_serial_only(
    sysfs: Sysfs, disks: SysfsDisks
) -> None:
    scans = [sysfs.root / "class" / "scsi_host" / f"host{n}" / "scan" for n in range(2)]
    for scan in scans:
        scan.parent.mkdir(parents=True)
        scan.touch()
    silent = sysfs.scsi("sda", None, number="8:0")
    known = sysfs.scsi("sdb", page(UID), number="8:16")
    virtio = sysfs.virtio("vdb", "")
    loop = sysfs.disk("loop0", number="7:0")
    root = sysfs.virtio("vda", "")
    (root / "vda1").mkdir()
    (root / "vda1" / "partition").write_text("1\n")
    folders = (silent, known, virtio, loop, root)
    for folder in folders:
        (folder / "uevent").touch()
    await disks.rescan()
    assert [scan.read_text() for scan in scans] == ["0 0 -"] * 2
    assert [(folder / "uevent").read_text() for folder in folders] == ["change", "", "change", "", ""]
    assert [(folder / "device" / "rescan").read_text() for folder in (silent, known)] == ["1", ""]


async def test_a_rescan_without_scsi_hosts_is_fine(disks: SysfsDisks) -> None:
    await disks.rescan()


async def test_a_rescan_that_is_refused_stops_nothing(sysfs: Sysfs, disks: SysfsDisks) -> None:
    (sysfs.root / "class" / "scsi_host" / "host0" / "scan").mkdir(parents=True)
    other = sysfs.root / "class" / "scsi_host" / "host1" / "scan"
    other.parent.mkdir()
    other.touch()
    await disks.rescan()
    assert other.read_text() == "0 0 -"


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
