"""Which disk is the volume's, on block devices of the kernel: waiting, swaps, doubles, multipath, what is on top.

Not every kernel of this tier has device mapper, so a multipath map is a loop device on the image of its paths, and the
paths are held exclusively as device mapper would hold them; the guest tier has real ones.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import FailedPrecondition, Unavailable
from kubevirt_csi.host.disks import SysfsDisks
from kubevirt_csi.host.places import HostPlaces
from kubevirt_csi.operations.locating import Locating
from tests.host.conftest import Plugin, start_plugin
from tests.host.machine import MIB, Machine, PluggedDisk, run
from tests.host.volumes import SERIAL, PodVolume

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


def sysfs(machine: Machine, disk: PluggedDisk) -> Path:
    return machine.sysfs / "block" / disk.name


def is_zero(disk: PluggedDisk) -> bool:
    return not any(disk.image.read_bytes())


def has_device_mapper() -> bool:
    try:
        return subprocess.run(["dmsetup", "version"], check=False, capture_output=True, timeout=10).returncode == 0
    except FileNotFoundError:
        return False


def put_on_top(machine: Machine, holder: str, *disks: PluggedDisk, uuid: str, label: str) -> None:
    """Shows a device-mapper device on top of the disks, in the folder that is there or in a new one."""
    folder = machine.sysfs / "block" / holder
    for part in ("dm", "slaves"):
        (folder / part).mkdir(parents=True)
    (folder / "dm" / "name").write_text(f"{label}\n")
    (folder / "dm" / "uuid").write_text(f"{uuid}\n")
    for disk in disks:
        (folder / "slaves" / disk.name).symlink_to(sysfs(machine, disk))
        holders = sysfs(machine, disk) / "holders"
        if holders.is_symlink():
            holders.unlink()
            holders.mkdir()
        (holders / holder).symlink_to(folder)


@contextmanager
def held(*disks: PluggedDisk) -> Iterator[None]:
    """Opens the disks exclusively."""
    with ExitStack() as stack:
        for disk in disks:
            stack.callback(os.close, os.open(disk.path, os.O_RDONLY | os.O_EXCL))
        yield


@dataclass(frozen=True, slots=True)
class Multipath:
    """One disk with two paths, and the map on top of them."""

    over: PluggedDisk
    paths: tuple[PluggedDisk, PluggedDisk]


@pytest.fixture
def multipath(machine: Machine) -> Iterator[Multipath]:
    first = machine.plug("sda", serial=SERIAL, bus="scsi")
    second = machine.plug("sdb", serial=SERIAL, bus="scsi", image=first.image)
    over = machine.plug("dm-0", serial="", image=first.image)
    (sysfs(machine, over) / "serial").unlink()
    put_on_top(machine, "dm-0", first, second, uuid="mpath-0QEMU_QEMU_HARDDISK_1", label="mpatha")
    with held(first, second):
        yield Multipath(over, (first, second))


async def test_a_disk_that_is_plugged_after_the_call_is_waited_for(plugin: Plugin) -> None:
    locating = Locating(disks=plugin.disks, mounts=plugin.mounts, places=HostPlaces())
    waiting = asyncio.create_task(locating.disk(volume_id="pvc-1", serial=UID))
    await asyncio.sleep(0)
    plugin.machine.plug("sdb", serial=UID, bus="scsi")
    assert (await waiting).name == "sdb"


@pytest.mark.parametrize("bus", ["virtio", "scsi"])
@pytest.mark.parametrize("serial", [SERIAL, UID], ids=["20 characters", "36 characters"])
async def test_new_and_old_serials_are_found_on_both_buses(plugin: Plugin, bus: str, serial: str) -> None:
    plugin.machine.plug("sdz", serial="another", bus=bus)
    disk = plugin.machine.plug("sdb", serial=serial, bus=bus)
    volume = PodVolume(plugin, serial=serial)
    await volume.stage()
    assert disk.read(1024 + 0x38, 2) == b"\x53\xef"  # the magic of ext4


async def test_the_name_after_a_reboot_is_another_and_the_disk_the_same(plugin: Plugin) -> None:
    image = plugin.machine.root / "volume.img"
    image.write_bytes(bytes(32 * MIB))
    first = plugin.machine.plug("sda", serial=SERIAL, bus="scsi", image=image)
    volume = PodVolume(plugin)
    await volume.stage()
    (volume.staging / "file").write_text("data")
    await volume.unstage()
    plugin.machine.unplug(first)
    plugin.machine.plug("sda", serial="another", bus="scsi")
    plugin.machine.plug("sdc", serial=SERIAL, bus="scsi", image=image)
    again = PodVolume(await start_plugin(plugin.machine), content=Content.USED)
    await again.stage()
    assert (again.staging / "file").read_text() == "data"


@pytest.mark.parametrize("bus", ["virtio", "scsi"])
async def test_a_disk_that_became_another_one_before_mkfs_is_not_touched(plugin: Plugin, bus: str) -> None:
    disk = plugin.machine.plug("sdb", serial=SERIAL, bus=bus)
    plugin.commands.once_after("blkid", lambda: plugin.machine.set_serial(disk, "another", bus=bus))
    with pytest.raises(Unavailable, match=r"serial 0123456789abcdef0123.* became .*serial another"):
        await PodVolume(plugin).stage()
    assert plugin.commands.made() == []
    assert is_zero(disk)


async def test_a_disk_that_became_another_one_before_the_mount_is_not_mounted(plugin: Plugin) -> None:
    disk = plugin.machine.plug("sdb", serial=SERIAL, bus="scsi")
    run("mkfs.ext4", "-q", str(disk.path))
    plugin.commands.once_after("blkid", lambda: plugin.machine.set_serial(disk, "another", bus="scsi"))
    with pytest.raises(Unavailable, match="became"):
        await PodVolume(plugin, content=Content.USED).stage()
    assert plugin.machine.mounts_below() == []


async def test_a_disk_that_changed_its_size_before_mkfs_is_not_touched(plugin: Plugin) -> None:
    disk = plugin.machine.plug("sdb", serial=SERIAL, size=32 * MIB, bus="scsi")
    plugin.commands.once_after("blkid", lambda: plugin.machine.grow(disk, 64 * MIB))
    with pytest.raises(Unavailable, match="became"):
        await PodVolume(plugin).stage()
    assert is_zero(disk)
    await PodVolume(plugin).stage()
    assert plugin.commands.made() == ["mkfs.ext4"]


async def test_a_multipath_map_is_formatted_mounted_published_and_released(
    plugin: Plugin, multipath: Multipath
) -> None:
    volume = PodVolume(plugin)
    await volume.stage()
    target = await volume.publish("a")
    (target / "file").write_text("data")
    number = multipath.over.path.stat().st_rdev
    assert [target.stat().st_dev, volume.staging.stat().st_dev] == [number, number]
    await volume.stage()
    await volume.unpublish("a")
    await volume.unstage()
    assert plugin.machine.mounts_below() == []
    with held(multipath.over):
        pass


async def test_a_multipath_map_is_published_raw(plugin: Plugin, multipath: Multipath) -> None:
    volume = PodVolume(plugin, block=True)
    await volume.stage()
    target = await volume.publish("a")
    assert target.stat().st_rdev == multipath.over.path.stat().st_rdev
    with pytest.raises(FailedPrecondition, match="still mounted at"):
        await volume.unstage()
    await volume.unpublish("a")
    await volume.unstage()


async def test_unstage_is_refused_while_something_holds_the_multipath_map(plugin: Plugin, multipath: Multipath) -> None:
    volume = PodVolume(plugin)
    await volume.stage()
    run("umount", str(volume.staging))
    with held(multipath.over), pytest.raises(FailedPrecondition, match=r"dm-0 .*still in use"):
        await volume.unstage()
    await volume.unstage()


async def test_a_path_that_became_another_disk_stops_the_mkfs_of_its_map(plugin: Plugin, multipath: Multipath) -> None:
    page = sysfs(plugin.machine, multipath.paths[1]) / "device" / "vpd_pg80"
    plugin.commands.once_after("blkid", lambda: page.write_bytes(b"\0\x80\0\x07another"))
    with pytest.raises(Unavailable, match=r"multipath over \S+sda, \S+sdb.* became"):
        await PodVolume(plugin).stage()
    assert is_zero(multipath.over)


async def test_a_third_disk_with_the_serial_of_a_map_is_refused(plugin: Plugin, multipath: Multipath) -> None:
    third = plugin.machine.plug("sdc", serial=SERIAL, bus="scsi")
    with pytest.raises(FailedPrecondition, match=r"2 disks .*dm-0 \(.*over .*sda, .*sdb\), .*sdc"):
        await PodVolume(plugin).stage()
    assert is_zero(third)
    assert is_zero(multipath.over)


async def test_what_is_mounted_from_a_map_is_not_stale_because_a_path_left(
    plugin: Plugin, multipath: Multipath
) -> None:
    volume = PodVolume(plugin)
    await volume.stage()
    plugin.machine.hide(multipath.paths[1])
    await volume.stage()
    await volume.publish("a")
    assert len(plugin.machine.mounts_below()) == 2


@pytest.mark.parametrize(
    ("uuid", "label"),
    [
        pytest.param("LVM-tGzZ8h", "vg-lv", id="LVM"),
        pytest.param("CRYPT-LUKS2-5f2c-secret", "secret", id="crypt"),
        pytest.param("part1-mpath-1", "mpatha-part1", id="partition of a map"),
    ],
)
async def test_a_disk_under_another_device_is_refused_and_the_device_is_named(
    plugin: Plugin, uuid: str, label: str
) -> None:
    disk = plugin.machine.plug("sdb", serial=SERIAL, bus="scsi")
    put_on_top(plugin.machine, "dm-3", disk, uuid=uuid, label=label)
    with pytest.raises(FailedPrecondition, match=rf"in use by dm-3 \({label}, {uuid}\)"):
        await PodVolume(plugin, override=SERIAL).stage()
    assert is_zero(disk)


@pytest.mark.skipif(not has_device_mapper(), reason="this machine's kernel has no device mapper")
async def test_a_device_that_device_mapper_has_built_on_the_disk_is_named(plugin: Plugin) -> None:
    disk = plugin.machine.plug("sdb", serial=SERIAL, size=32 * MIB, bus="scsi")
    name = f"kubevirt-csi-test-{os.getpid()}"
    table = f"0 {32 * MIB // 512} linear {disk.loop} 0"
    run("dmsetup", "create", name, "--noudevsync", "--uuid", f"LVM-{name}", "--table", table)
    try:
        with pytest.raises(FailedPrecondition, match=rf"in use by dm-\d+ \({name}, LVM-{name}\)"):
            await PodVolume(plugin, override=SERIAL).stage()
    finally:
        run("dmsetup", "remove", "--noudevsync", "--retry", name)
    assert is_zero(disk)
    await PodVolume(plugin).stage()


async def test_a_raid_and_a_partition_are_refused_and_named(plugin: Plugin) -> None:
    disk = plugin.machine.plug("sdb", serial=SERIAL, bus="scsi")
    folder = sysfs(plugin.machine, disk)
    (folder / "holders").unlink()
    (folder / "holders" / "md127" / "md").mkdir(parents=True)
    (folder / "holders" / "md127" / "md" / "level").write_text("raid1\n")
    with pytest.raises(FailedPrecondition, match=r"in use by md127 \(raid1\)"):
        await PodVolume(plugin, override=SERIAL).stage()
    (folder / "sdb1").mkdir()
    (folder / "sdb1" / "partition").write_text("1\n")
    with pytest.raises(FailedPrecondition, match=r"has partitions \(sdb1\)"):
        await PodVolume(plugin, override=SERIAL).stage()
    assert is_zero(disk)


async def test_a_stuck_disk_keeps_no_other_volume_from_its_pod(machine: Machine) -> None:
    plugin = await impatient_plugin(machine)
    stuck = plugin.machine.plug("vdb", serial="another")
    serial = sysfs(plugin.machine, stuck) / "serial"
    serial.unlink()
    os.mkfifo(serial)
    plugin.machine.plug("vdc", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.stage()
    await volume.publish("a")
    await volume.unpublish("a")
    await volume.unstage()
    serial.write_text("another")


async def test_a_raw_volume_whose_disk_does_not_answer_is_not_said_to_be_unstaged(machine: Machine) -> None:
    plugin = await impatient_plugin(machine)
    disk = plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin, block=True)
    await volume.stage()
    serial = sysfs(plugin.machine, disk) / "serial"
    serial.unlink()
    os.mkfifo(serial)
    with pytest.raises(Unavailable, match=r"may still be in use.*do not answer: .*vdb"):
        await volume.unstage()
    serial.write_text(SERIAL)


async def impatient_plugin(machine: Machine) -> Plugin:
    """One that gives a disk hardly any time to answer."""
    disks = SysfsDisks(sysfs_root=machine.sysfs, dev_root=machine.dev, answer_seconds=0.05)
    return await start_plugin(machine, disks=disks)
