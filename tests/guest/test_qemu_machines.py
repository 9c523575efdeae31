"""What a guest and the host see when real disks are plugged into a real machine and taken out again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.lab.images.commands import run
from e2e.lab.machines import Bus, Disk, MachineError
from e2e.lab.machines.qemu import QemuMachines
from tests.guest.conftest import VM

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

SERIAL = "6a0d5fb0-79e9-4d0c-9a07-3a5f0e0b2c51"
PORTS = 3  # KubeVirt's number for a guest of up to 2 GiB

Plug = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture(loop_scope="module")
async def plug(machines: QemuMachines, tmp_path: Path) -> AsyncIterator[Plug]:
    """Plugs a blank disk of 16 MiB and returns its target once the guest has it; unplugs all at the end."""
    async with AsyncExitStack() as undo:

        async def plug(name: str, bus: Bus, *, serial: str = SERIAL, read_only: bool = False) -> str:
            path = tmp_path / f"{name}.raw"
            path.touch()
            os.truncate(path, 16 * 1024**2)
            disk = Disk(name=name, path=path, bus=bus, serial=serial, read_only=read_only)
            target = await machines.plug(VM, disk)
            undo.push_async_callback(machines.unplug, VM, name)
            await guest(machines, f"for _ in $(seq 100); do [ -b /dev/{target} ] && exit; sleep 0.1; done; exit 1")
            await settled(machines)
            return target

        yield plug


async def guest(machines: QemuMachines, script: str) -> str:
    """The output of a shell script in the guest, which must succeed."""
    result = await machines.run(VM, ["sh", "-c", script], timeout=120)
    assert result.code == 0, f"{script}: {result}"
    return result.stdout


async def settled(machines: QemuMachines) -> None:
    """Returns when udev has looked at every disk: one that it has open keeps its name beyond its unplugging."""
    await guest(machines, "udevadm settle --timeout=60")


async def gone(machines: QemuMachines, target: str) -> None:
    """Returns when the guest has let go of the disk: a SCSI disk leaves QEMU at once, and the guest hears of it."""
    await guest(machines, f"for _ in $(seq 100); do [ -e /sys/block/{target} ] || exit 0; sleep 0.1; done; exit 1")
    await settled(machines)


async def test_a_scsi_disk_carries_all_36_characters_of_its_serial(machines: QemuMachines, plug: Plug) -> None:
    target = await plug("a", "scsi")
    page = await guest(machines, f"tail -c +5 /sys/block/{target}/device/vpd_pg80")
    assert target == "sda"
    assert page == SERIAL


async def test_a_virtio_disk_shows_the_first_20_characters_of_its_serial(machines: QemuMachines, plug: Plug) -> None:
    target = await plug("a", "virtio")
    assert target == "vdc"
    assert await guest(machines, f"cat /sys/block/{target}/serial") == SERIAL[:20]


@pytest.mark.parametrize("bus", ["scsi", "virtio"])
async def test_an_unplugged_disk_is_gone_from_the_guest(machines: QemuMachines, plug: Plug, bus: Bus) -> None:
    target = await plug("a", bus)
    await machines.unplug(VM, "a")
    await gone(machines, target)


@pytest.mark.parametrize("bus", ["scsi", "virtio"])
async def test_what_the_guest_writes_is_in_the_hosts_file(
    machines: QemuMachines, plug: Plug, tmp_path: Path, bus: Bus
) -> None:
    target = await plug("a", bus)
    await guest(machines, f"printf written | dd of=/dev/{target} bs=512 seek=8 conv=sync,fsync")
    assert (tmp_path / "a.raw").read_bytes()[8 * 512 :].startswith(b"written\0")


@pytest.mark.parametrize("bus", ["scsi", "virtio"])
async def test_a_disk_whose_file_has_grown_is_larger_in_the_guest(
    machines: QemuMachines, plug: Plug, tmp_path: Path, bus: Bus
) -> None:
    target = await plug("a", bus)
    os.truncate(tmp_path / "a.raw", 32 * 2**20)
    await machines.resize(VM, "a", 32 * 2**20)
    block = f"/sys/block/{target}"
    rescan = f"! [ -e {block}/device/rescan ] || echo 1 > {block}/device/rescan"
    is_larger = f"[ $(cat {block}/size) = {32 * 2**20 // 512} ]"
    await guest(machines, f"for _ in $(seq 100); do {is_larger} && exit; {rescan}; sleep 0.1; done; exit 1")


async def test_a_disk_that_is_not_plugged_cannot_be_resized(machines: QemuMachines) -> None:
    with pytest.raises(MachineError, match="worker-1: disk a is not plugged, so it cannot be resized"):
        await machines.resize(VM, "a", 2**20)


async def test_a_disk_that_is_not_plugged_can_neither_be_slow_nor_fail(machines: QemuMachines) -> None:
    with pytest.raises(MachineError, match="worker-1: disk a is not plugged, so it cannot be slow"):
        await machines.throttle(VM, "a", 2**20)
    with pytest.raises(MachineError, match="worker-1: disk a is not plugged, so it cannot fail"):
        await machines.fail(VM, "a", ["read"])


@pytest.mark.parametrize("bus", ["scsi", "virtio"])
async def test_a_disk_that_fails_can_be_unplugged_and_is_a_good_one_when_it_is_back(
    machines: QemuMachines, plug: Plug, bus: Bus
) -> None:
    target = await plug("a", bus)
    await machines.fail(VM, "a", ["read", "write"])
    read = f"dd if=/dev/{target} bs=512 count=1 iflag=direct of=/dev/null"
    assert (await machines.run(VM, ["sh", "-c", read])).code != 0
    await machines.unplug(VM, "a")
    await gone(machines, target)
    assert await plug("a", bus) == target
    await guest(machines, f"for _ in $(seq 100); do [ -b /dev/{target} ] && break; sleep 0.1; done; {read}")


async def test_the_plugged_disks_are_known_by_their_names(machines: QemuMachines, plug: Plug) -> None:
    await plug("a", "scsi")
    assert machines.plugged(VM) == {"a"}
    await machines.unplug(VM, "a")
    assert machines.plugged(VM) == set()


async def test_a_paused_guest_does_nothing_until_it_goes_on(machines: QemuMachines) -> None:
    await machines.set_paused(VM, paused=True)
    try:
        with pytest.raises(MachineError, match="did not end in the guest"):
            await machines.run(VM, ["true"], timeout=2.0)
    finally:
        await machines.set_paused(VM, paused=False)
    assert (await machines.run(VM, ["true"])).code == 0


async def test_a_read_only_disk_is_read_only_in_the_guest(machines: QemuMachines, plug: Plug) -> None:
    target = await plug("a", "scsi", read_only=True)
    assert await guest(machines, f"cat /sys/block/{target}/ro") == "1\n"


async def test_a_disk_that_is_plugged_already_keeps_its_target(machines: QemuMachines, plug: Plug) -> None:
    assert await plug("a", "scsi") == await plug("a", "scsi") == "sda"
    assert (await guest(machines, "cd /sys/block; ls -d [sv]d*")).split() == ["sda", "vda", "vdb"]


async def test_a_target_is_used_again_after_its_disk_has_gone(machines: QemuMachines, plug: Plug) -> None:
    assert [await plug("a", "scsi"), await plug("b", "scsi")] == ["sda", "sdb"]
    await machines.unplug(VM, "a")
    await gone(machines, "sda")
    assert await plug("c", "scsi") == "sda"


async def test_virtio_disks_beyond_the_free_ports_are_refused_until_one_is_unplugged(
    machines: QemuMachines, plug: Plug
) -> None:
    for number in range(PORTS):
        await plug(f"v{number}", "virtio", serial=f"serial-{number}")
    with pytest.raises(MachineError, match="worker-1: cannot plug disk extra: No more available PCI slots"):
        await plug("extra", "virtio")
    await machines.unplug(VM, "v1")
    assert await plug("extra", "virtio") == "vdd"


async def test_a_serial_of_more_than_36_characters_is_refused(plug: Plug) -> None:
    with pytest.raises(MachineError, match="can't be longer than 36 characters"):
        await plug("a", "scsi", serial=SERIAL + "x")


async def test_a_disk_whose_file_is_missing_is_refused_and_leaves_no_trace(
    machines: QemuMachines, plug: Plug, tmp_path: Path
) -> None:
    missing = Disk(name="a", path=tmp_path / "missing.raw", bus="scsi", serial=SERIAL)
    with pytest.raises(MachineError, match=r"worker-1: QEMU refused blockdev-add: .*No such file"):
        await machines.plug(VM, missing)
    assert await plug("a", "scsi") == "sda"


async def test_a_disk_that_was_never_plugged_can_be_unplugged(machines: QemuMachines) -> None:
    await machines.unplug(VM, "unknown")


async def test_a_machine_that_does_not_run_takes_no_disk(machines: QemuMachines, raw: Path) -> None:
    with pytest.raises(MachineError, match="stopped does not run"):
        await machines.plug("stopped", Disk(name="a", path=raw, bus="scsi", serial=SERIAL))
    await machines.unplug("stopped", "a")
    assert not machines.running("stopped")


async def test_an_unknown_machine_is_an_error_that_names_the_known_ones(machines: QemuMachines) -> None:
    with pytest.raises(MachineError, match="no machine 'other' in this lab, there are: worker-1, stopped"):
        await machines.start("other")


async def test_a_command_in_the_guest_tells_its_code_and_both_outputs(machines: QemuMachines) -> None:
    result = await machines.run(VM, ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.code, result.stdout, result.stderr) == (3, "out\n", "err\n")


async def test_a_stopped_machine_is_reaped_and_keeps_its_root_disk_but_no_plugged_one(
    machines: QemuMachines, plug: Plug
) -> None:
    await plug("a", "scsi")
    await guest(machines, "echo kept > /root/file")
    (pid,) = [process.pid for process in [machines._machines[VM].process] if process is not None]
    await machines.stop(VM)
    assert not machines.running(VM)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await machines.start(VM)
    assert machines.running(VM)
    assert await guest(machines, "cat /root/file; cd /sys/block; ls -d [sv]d*") == "kept\nvda\nvdb\n"


async def test_a_volume_that_is_mounted_at_power_off_is_left_clean(
    machines: QemuMachines, plug: Plug, tmp_path: Path
) -> None:
    target = await plug("a", "scsi")
    await guest(machines, f"mkfs.ext4 -q /dev/{target} && mount /dev/{target} /mnt && echo data > /mnt/file")
    await machines.stop(VM)
    superblock = run(["dumpe2fs", "-h", tmp_path / "a.raw"], timeout=30)
    content = run(["debugfs", "-R", "cat file", tmp_path / "a.raw"], timeout=30)
    await machines.start(VM)
    assert "needs_recovery" not in superblock
    assert "data\n" in content


async def test_a_guest_that_powers_itself_off_is_seen_to_be_off(machines: QemuMachines) -> None:
    process = machines._machines[VM].process
    assert process is not None
    await machines.run(VM, ["sh", "-c", "(sleep 0.5; busybox poweroff) > /dev/null 2>&1 &"])
    assert await process.wait() == 0
    assert not machines.running(VM)
    await machines.stop(VM)
