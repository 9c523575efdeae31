"""Loop machines of the lab, as the driver's own node adapters see them; and what a killed process leaves of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.lab.machines import Bus, Disk, MachineError
from e2e.lab.machines.loop import LoopMachines
from kubevirt_csi import domain
from kubevirt_csi.domain.volumes import Bus as SeenBus
from kubevirt_csi.host.disks import SysfsDisks
from tests.host.machine import MIB, run

VM = "worker-1"
UID = "7c9d8f52-52f5-4a22-a4c8-6ad25a5d2a5e"  # 36 characters
REPOSITORY = Path(__file__).parents[2]
HOLD = """
import asyncio, pathlib, sys
from e2e.lab.machines import Disk
from e2e.lab.machines.loop import LoopMachines

async def main(root):
    machines = LoopMachines(root / "machines")
    await machines.start("worker-1")
    await machines.plug("worker-1", Disk(name="a", path=root / "a.raw", bus="scsi", serial="s"))
    print("plugged", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@pytest_asyncio.fixture
async def machines(tmp_path: Path) -> AsyncIterator[LoopMachines]:
    made = LoopMachines(tmp_path / "machines", virtio_ports=2)
    await made.start(VM)
    try:
        yield made
    finally:
        await made.close()


def image(tmp_path: Path, name: str, *, size: int = 4 * MIB) -> Path:
    path = tmp_path / f"{name}.raw"
    with path.open("wb") as file:
        file.truncate(size)
    return path


def disk(tmp_path: Path, name: str = "a", *, bus: Bus = "virtio", serial: str = UID, read_only: bool = False) -> Disk:
    return Disk(name=name, path=image(tmp_path, name), bus=bus, serial=serial, read_only=read_only)


async def seen(tmp_path: Path) -> tuple[domain.disks.Disk, ...]:
    folder = tmp_path / "machines" / VM
    return await SysfsDisks(sysfs_root=folder / "sys", dev_root=folder / "dev").all()


def write(path: str, data: bytes) -> None:
    with Path(path).open("r+b") as device:
        device.write(data)


def number(path: str) -> tuple[int, int]:
    device = Path(path).stat().st_rdev
    return os.major(device), os.minor(device)


def attached(tmp_path: Path) -> str:
    """The loop devices whose image lies in this folder."""
    return "\n".join(line for line in run("losetup", "--list", "--noheadings").splitlines() if str(tmp_path) in line)


@pytest.mark.parametrize(
    ("bus", "target", "serial", "seen_bus"),
    [("virtio", "vdb", UID[:20], SeenBus.VIRTIO), ("scsi", "sda", UID, SeenBus.SCSI)],
)
async def test_the_node_sees_a_plugged_disk_with_the_serial_its_bus_can_carry(
    machines: LoopMachines, tmp_path: Path, *, bus: Bus, target: str, serial: str, seen_bus: SeenBus
) -> None:
    assert await machines.plug(VM, disk(tmp_path, bus=bus)) == target
    (found,) = await seen(tmp_path)
    assert (found.name, found.serial, found.bus) == (target, serial, seen_bus)
    assert (found.size_bytes, found.read_only, found.partitions) == (4 * MIB, False, ())
    assert number(found.path) == (found.number.major, found.number.minor)


async def test_what_is_written_to_the_disk_is_in_its_image(machines: LoopMachines, tmp_path: Path) -> None:
    await machines.plug(VM, disk(tmp_path))
    (found,) = await seen(tmp_path)
    write(found.path, b"by the guest")
    await machines.unplug(VM, "a")
    assert (tmp_path / "a.raw").read_bytes().startswith(b"by the guest")


async def test_a_read_only_disk_takes_no_writes(machines: LoopMachines, tmp_path: Path) -> None:
    await machines.plug(VM, disk(tmp_path, read_only=True))
    (found,) = await seen(tmp_path)
    assert found.read_only
    with pytest.raises(PermissionError):
        write(found.path, b"by the guest")


async def test_plugging_and_unplugging_again_change_nothing(machines: LoopMachines, tmp_path: Path) -> None:
    assert await machines.plug(VM, disk(tmp_path)) == await machines.plug(VM, disk(tmp_path)) == "vdb"
    assert machines.plugged(VM) == {"a"}
    for _ in range(2):
        await machines.unplug(VM, "a")
        assert (await seen(tmp_path), attached(tmp_path), machines.plugged(VM)) == ((), "", set())


async def test_a_freed_name_is_given_to_the_next_disk(machines: LoopMachines, tmp_path: Path) -> None:
    for name, target in (("a", "sda"), ("b", "sdb")):
        assert await machines.plug(VM, disk(tmp_path, name, bus="scsi")) == target
    await machines.unplug(VM, "a")
    assert await machines.plug(VM, disk(tmp_path, "c", bus="scsi")) == "sda"


async def test_virtio_disks_are_as_many_as_there_are_ports(machines: LoopMachines, tmp_path: Path) -> None:
    for name in ("a", "b"):
        await machines.plug(VM, disk(tmp_path, name))
    with pytest.raises(MachineError, match=r"worker-1: cannot plug disk c: No more available PCI slots"):
        await machines.plug(VM, disk(tmp_path, "c"))
    assert await machines.plug(VM, disk(tmp_path, "c", bus="scsi")) == "sda"


async def test_a_disk_grows_under_the_node(machines: LoopMachines, tmp_path: Path) -> None:
    await machines.plug(VM, disk(tmp_path))
    os.truncate(tmp_path / "a.raw", 8 * MIB)
    await machines.resize(VM, "a", 8 * MIB)
    (found,) = await seen(tmp_path)
    assert found.size_bytes == 8 * MIB


async def test_a_disk_cannot_be_larger_than_its_image(machines: LoopMachines, tmp_path: Path) -> None:
    await machines.plug(VM, disk(tmp_path))
    with pytest.raises(MachineError, match=rf"the image of disk a has {4 * MIB} bytes, less than {8 * MIB}"):
        await machines.resize(VM, "a", 8 * MIB)


async def test_an_image_that_is_not_there_is_an_error_of_the_machine(machines: LoopMachines, tmp_path: Path) -> None:
    missing = Disk(name="a", path=tmp_path / "missing.raw", bus="scsi", serial="")
    with pytest.raises(MachineError, match=r"worker-1: .*missing\.raw"):
        await machines.plug(VM, missing)
    assert (await seen(tmp_path), machines.plugged(VM)) == ((), set())


async def test_a_machine_that_stops_gives_its_disks_back_and_starts_empty(
    machines: LoopMachines, tmp_path: Path
) -> None:
    await machines.plug(VM, disk(tmp_path))
    await machines.stop(VM)
    assert (machines.running(VM), attached(tmp_path), machines.plugged(VM)) == (False, "", set())
    with pytest.raises(MachineError, match=r"worker-1 does not run"):
        await machines.plug(VM, disk(tmp_path))
    await machines.start(VM)
    assert await seen(tmp_path) == ()


async def test_a_mounted_disk_is_kept_by_its_mount_alone(machines: LoopMachines, tmp_path: Path) -> None:
    await machines.plug(VM, disk(tmp_path))
    (found,) = await seen(tmp_path)
    run("mkfs.ext4", "-q", found.path)
    place = tmp_path / "mounted"
    place.mkdir()
    run("mount", found.path, str(place))
    try:
        await machines.unplug(VM, "a")
        assert await seen(tmp_path) == ()
        assert attached(tmp_path) != ""
    finally:
        run("umount", str(place))
    assert attached(tmp_path) == ""


def test_a_killed_process_leaves_no_loop_device(tmp_path: Path) -> None:
    image(tmp_path, "a")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "plugged\n"
        assert attached(tmp_path) != ""
        process.send_signal(signal.SIGKILL)
    assert attached(tmp_path) == ""
