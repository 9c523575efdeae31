"""The disks of this node, read from sysfs: serial, device number, size, what is built on top of them.

Serials come from the kernel (virtio ``serial``, SCSI vital product data page 0x80), never from udev's database or its
by-id links, which are filled later, sometimes never, and have pointed at other disks. Nothing is cached: names are
given to other disks after an unplug.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.host import blocking
from kubevirt_csi.host.devices import OpenDevice

log = structlog.get_logger(__name__)

SECTOR_BYTES = 512
"""The unit of sysfs ``size``, whatever the disk's own sector size is."""

# A virtio serial is asked from the device at each read, so even sysfs can hang.
READ_SECONDS = 10.0

_VPD_HEADER_BYTES = 4
_VPD_UNIT_SERIAL_NUMBER = 0x80


class SysfsDisks:
    """Implements ``ports.host.Disks``.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: the folder of device nodes, that of the host.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path) -> None:
        self._sysfs = sysfs_root
        self._dev = dev_root

    async def all(self) -> tuple[Disk, ...]:
        """Every whole block device. One that vanishes while it is read is left out."""
        return await blocking.call(lambda: tuple(self._present()), what="reading sysfs", timeout=READ_SECONDS)

    async def rescan(self) -> None:
        """Asks every SCSI host to scan its bus."""
        await blocking.call(self._scan_hosts, what="rescanning the SCSI hosts", timeout=READ_SECONDS)

    @asynccontextmanager
    async def opened(self, disk: Disk) -> AsyncIterator[OpenDevice]:
        """Opens the disk and verifies that the opened device is that disk.

        Raises:
            Unavailable: it has left, or its name now belongs to another disk.
        """
        async with OpenDevice.open(disk, read_again=self._read_again) as device:
            await device.verify()
            yield device

    def _present(self) -> Iterator[Disk]:
        for folder in sorted((self._sysfs / "block").iterdir()):
            try:
                yield self._disk(folder)
            except (OSError, ValueError) as error:
                log.debug("disk skipped", disk=folder.name, error=str(error))

    def _disk(self, folder: Path) -> Disk:
        serial, bus = _identity(folder)
        return Disk(
            name=folder.name,
            path=str(self._dev / folder.name.replace("!", "/")),
            number=DeviceNumber.parse((folder / "dev").read_text()),
            size_bytes=int((folder / "size").read_text()) * SECTOR_BYTES,
            serial=serial,
            bus=bus,
            read_only=(folder / "ro").read_text().strip() == "1",
            holders=_names(folder / "holders"),
            partitions=tuple(sorted(child.parent.name for child in folder.glob("*/partition"))),
            sequence=_number(folder / "diskseq"),
        )

    def _read_again(self, disk: Disk) -> Disk:
        try:
            return self._disk(self._sysfs / "block" / disk.name)
        except (OSError, ValueError) as error:
            raise Unavailable(f"disk {disk} has left this node: {error}") from error

    def _scan_hosts(self) -> None:
        for scan in sorted((self._sysfs / "class" / "scsi_host").glob("host*/scan")):
            try:
                scan.write_text("- - -")
            except OSError as error:
                log.warning("scsi rescan failed", host=scan.parent.name, error=str(error))


def _identity(folder: Path) -> tuple[str, Bus | None]:
    """The serial and the bus that tells it; ("", None) for a kind of disk that has neither."""
    with contextlib.suppress(FileNotFoundError):
        return _text((folder / "serial").read_bytes()), Bus.VIRTIO
    with contextlib.suppress(FileNotFoundError):
        return unit_serial_number((folder / "device" / "vpd_pg80").read_bytes()), Bus.SCSI
    return "", None


def unit_serial_number(page: bytes) -> str:
    """The serial in a SCSI vital product data page 0x80; empty when the page is not one, or is cut short.

    Source: SCSI Primary Commands, Unit Serial Number VPD page: byte 1 the page code, bytes 2 and 3 the length of what
    follows.
    """
    if len(page) < _VPD_HEADER_BYTES or page[1] != _VPD_UNIT_SERIAL_NUMBER:
        return ""
    length = int.from_bytes(page[2:_VPD_HEADER_BYTES], "big")
    serial = page[_VPD_HEADER_BYTES : _VPD_HEADER_BYTES + length]
    return _text(serial) if len(serial) == length else ""


def _text(raw: bytes) -> str:
    """Serials are padded with spaces or zeroes; one that is not plain ASCII is none of ours."""
    try:
        return raw.decode("ascii").strip(" \0\n")
    except UnicodeDecodeError:
        return ""


def _number(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(child.name for child in folder.iterdir())) if folder.is_dir() else ()
