"""Disks of the guest's own making that are slow, broken, hung or have two paths, and still show a serial.

A device-mapper device has no serial, so it is exported to the same machine as a SCSI disk by the kernel's own target
(LIO: iblock over the map, loopback as the transport), with a unit serial number of the test's choice. Below is a disk
that was plugged in; its map is what the test changes:

    /dev/sdX (plugged) - map "NAME" (linear, delay, flakey, error) - target - /dev/sdY and, if asked for, /dev/sdZ

The kernel would give up a command after 30 s; here it waits an hour, as a disk behind a hung storage does.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.guest.node import GuestNode

MODULES = ("dm-mod", "dm-delay", "dm-flakey", "dm-multipath", "dm-round-robin", "tcm_loop", "target_core_iblock")
TARGET = "/sys/kernel/config/target"
COMMAND_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedDisk:
    """A SCSI disk over a map; ``names`` are its paths in the guest."""

    node: GuestNode
    map: str
    below: str
    sectors: int
    names: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The device nodes of its paths."""
        return tuple(f"/dev/{name}" for name in self.names)

    async def works(self) -> None:
        """Every command is carried out at once."""
        await self._load(f"0 {self.sectors} linear {self.below} 0")

    async def delays(self, *, reads_ms: int, writes_ms: int) -> None:
        """Every command takes so long (dm-delay)."""
        await self._load(f"0 {self.sectors} delay {self.below} 0 {reads_ms} {self.below} 0 {writes_ms}")

    async def fails(self) -> None:
        """Every command ends with an error (dm's error target)."""
        await self._load(f"0 {self.sectors} error")

    async def refuses_writes_in_the_middle(self) -> None:
        """All of it can be read, the first and the last sixteenth be written (dm-flakey).

        A flush would fail too, wherever what it flushes lies; so the disk is one without a cache. "Temporary" is the
        word for what a later look of the kernel at the disk does not undo.
        """
        begin, end = self.sectors // 16, 15 * (self.sectors // 16)
        await self._load(
            f"0 {begin} linear {self.below} 0",
            f"{begin} {end - begin} flakey {self.below} {begin} 0 1000000 1 error_writes",
            f"{end} {self.sectors - end} linear {self.below} {end}",
        )
        for name in self.names:
            await self.node.sh(f"cd /sys/block/{name}/device/scsi_disk/*; echo temporary write through > cache_type")

    async def refuses_writes(self) -> None:
        """What is there can be read, but writes and flushes end with an error (dm-flakey)."""
        await self._load(f"0 {self.sectors} flakey {self.below} 0 0 1000000 1 error_writes")

    async def flickers(self, *, up_seconds: int, down_seconds: int) -> None:
        """Works for some seconds, fails for some seconds, and so on (dm-flakey)."""
        await self._load(f"0 {self.sectors} flakey {self.below} 0 {up_seconds} {down_seconds}")

    async def grows(self, sectors: int) -> None:
        """It has so many sectors of what is below, and tells nobody."""
        await self._load(f"0 {sectors} linear {self.below} 0")

    async def hangs(self) -> None:
        """Commands are neither carried out nor refused until the map is changed again."""
        await self.node.sh(f"dmsetup suspend --noflush --nolockfs {self.map}")

    async def leaves(self) -> None:
        """It is unplugged, whoever uses it."""
        await self.node.sh(f"rm {_tpg(self.map, 0)}/lun/lun_0/link")

    async def returns(self) -> str:
        """It is plugged again; returns its device node, which may have another name."""
        return f"/dev/{await _connected(self.node, self.map, 0)}"

    async def _load(self, *table: str) -> None:
        lines = "\\n".join(table)
        await self.node.sh(
            f"dmsetup suspend --noflush --nolockfs {self.map}; "
            f"printf '{lines}\\n' | dmsetup reload {self.map} && dmsetup resume {self.map}"
        )


@asynccontextmanager
async def exported(
    node: GuestNode, device: str, *, serial: str, paths: int = 1, sectors: int = 0
) -> AsyncIterator[ExportedDisk]:
    """Exports the plugged disk ``device`` under another serial; at the end everything is taken down again.

    Args:
        sectors: how many of its sectors of 512 bytes, from the first; 0 for all.
    """
    name = f"map-{secrets.token_hex(4)}"
    await node.sh(
        f"modprobe -a {' '.join(MODULES)}; mountpoint -q /sys/kernel/config || mount -t configfs c /sys/kernel/config"
    )
    sectors = sectors or int(await node.sh(f"cat /sys/block/{device.removeprefix('/dev/')}/size"))
    try:
        await node.sh(f"dmsetup create {name} --table '0 {sectors} linear {device} 0'")
        await node.sh(_backstore(name, serial))
        names = [await _path(node, name, number) for number in range(paths)]
        await node.settled()
        yield ExportedDisk(node=node, map=name, below=device, sectors=sectors, names=tuple(names))
    finally:
        await node.clear()
        await node.sh(_taken_down(name, sectors, paths))
        await node.settled()


def _backstore(name: str, serial: str) -> str:
    folder = f"{TARGET}/core/iblock_0/{name}"
    return f"""set -e
mkdir -p {folder}
echo udev_path=/dev/mapper/{name},readonly=0 > {folder}/control
echo 1 > {folder}/enable
echo {serial} > {folder}/wwn/vpd_unit_serial
"""


async def _path(node: GuestNode, name: str, number: int) -> str:
    """Makes one more path to the map and returns the name of the disk that appears."""
    tpg = _tpg(name, number)
    await node.sh(f"mkdir -p {tpg}/lun/lun_0 && echo {_wwn(name, number, port=1)} > {tpg}/nexus")
    return await _connected(node, name, number)


async def _connected(node: GuestNode, name: str, number: int) -> str:
    return (
        await node.sh(f"""set -e
before=$(ls /sys/block)
ln -s {TARGET}/core/iblock_0/{name} {_tpg(name, number)}/lun/lun_0/link
for _ in $(seq 100); do
    for disk in $(ls /sys/block | grep ^sd); do
        if ! echo $before | grep -qw $disk && [ -b /dev/$disk ]; then
            echo {COMMAND_SECONDS} > /sys/block/$disk/device/timeout
            echo $disk
            exit 0
        fi
    done
    sleep 0.1
done
dmesg | tail -n 20
exit 1
""")
    ).strip()


def _taken_down(name: str, sectors: int, paths: int) -> str:
    """What hangs is let go first: a map that answers with errors can be closed."""
    lines = [f"dmsetup suspend --noflush --nolockfs {name}; dmsetup reload {name} --table '0 {sectors} error'"]
    lines += [f"dmsetup resume {name}"]
    for number in range(paths):
        tpg = _tpg(name, number)
        lines += [f"rm -f {tpg}/lun/lun_0/link; rmdir {tpg}/lun/lun_0 {tpg} {tpg}/.."]
    lines += [f"rmdir {TARGET}/core/iblock_0/{name}"]
    lines += [f"for _ in $(seq 50); do dmsetup remove {name} && exit 0; sleep 0.1; done; exit 1"]
    return "\n".join(lines)


def _tpg(name: str, number: int) -> str:
    return f"{TARGET}/loopback/{_wwn(name, number, port=0)}/tpgt_1"


def _wwn(name: str, number: int, *, port: int) -> str:
    """A name in the format that the transport wants, another for each path and each of its two ends."""
    return f"naa.5001405{name.removeprefix('map-')}{number}{port}"[:20]
