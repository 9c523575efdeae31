"""One block device as sysfs shows it: serial, device number, size, what is built on top of it.

Serials come from the kernel: virtio's ``serial`` attribute, and SCSI's vital product data page 0x80. A virtio disk is
asked for it at each read, and one that is stuck does not answer, so the caller says how to ask. A device-mapper
multipath map has no serial of its own; it has that of its paths, when they are of one mind.

All disks are read at each look, several times in a call, so this asks the kernel for little and by its own calls.
Source: Documentation/ABI in the kernel (sysfs-block, sysfs-block-dm), drivers/block/virtio_blk.c.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.volumes import Bus

SECTOR_BYTES = 512
"""The unit of sysfs ``size``, whatever the disk's own sector size is."""

VIRTIO_SERIAL = "serial"
"""The attribute of a virtio disk, and of no other kind."""
_MULTIPATH = "mpath-"
"""How multipath-tools begins the device-mapper UUID of its maps; those of partitions on them begin otherwise."""

_VPD_HEADER_BYTES = 4
_VPD_UNIT_SERIAL_NUMBER = 0x80
_PAGE_BYTES = 4096
"""An attribute is never longer."""

AskVirtio = Callable[[Path], str | None]
"""Gives the serial of the virtio disk with this folder, None when it does not answer."""


def read(folder: Path, *, dev_root: Path, ask_virtio: AskVirtio, below: str = "") -> Disk:
    """The disk with this folder below ``/sys/block``.

    Args:
        folder: its name is the disk's.
        dev_root: where its device node is.
        ask_virtio: how to ask a virtio disk for its serial.
        below: the name of a device that is not to count as built on the disk.

    Raises:
        OSError, ValueError: it is not there, or not any more.
    """
    attributes = _names(folder)
    paths = _paths(folder, dev_root=dev_root, ask_virtio=ask_virtio) if "dm" in attributes else ()
    serial, bus = _common_identity(paths) if paths else _identity(folder, attributes, ask_virtio)
    return Disk(
        name=folder.name,
        path=f"{dev_root}/{folder.name.replace('!', '/')}",
        number=DeviceNumber.parse(_content(f"{folder}/dev").decode()),
        size_bytes=int(_content(f"{folder}/size")) * SECTOR_BYTES,
        serial=serial or "",
        bus=bus,
        mute=serial is None or any(path.mute for path in paths),
        read_only=_content(f"{folder}/ro").strip() == b"1",
        holders=_merged(_holders(folder, but=below), *(path.holders for path in paths)),
        partitions=_merged(_partitions(folder, attributes), *(path.partitions for path in paths)),
        sequence=int(_content(f"{folder}/diskseq")) if "diskseq" in attributes else 0,
        paths=paths,
    )


def virtio_serial(folder: Path) -> str:
    """Asks a virtio disk for its serial, which may take for ever. Empty when it refuses: then it belongs to nobody."""
    try:
        return _text(_content(f"{folder}/{VIRTIO_SERIAL}"))
    except OSError:
        return ""


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


def _identity(folder: Path, attributes: set[str], ask_virtio: AskVirtio) -> tuple[str | None, Bus | None]:
    """The serial and the bus; ("", None) for a kind of disk that is none of ours, (None, ...) without an answer."""
    if VIRTIO_SERIAL in attributes:
        return ask_virtio(folder), Bus.VIRTIO
    if "device" not in attributes:
        return "", None
    device = _names(folder / "device")
    if "vpd_pg80" in device:
        return _page_serial(f"{folder}/device/vpd_pg80"), Bus.SCSI
    return "", Bus.SCSI if "scsi_level" in device else None


def _common_identity(paths: tuple[Disk, ...]) -> tuple[str | None, Bus | None]:
    """What all paths of a map show; a map over anything else is nobody's."""
    identities = {(path.serial, path.bus) for path in paths}
    return identities.pop() if len(identities) == 1 else ("", None)


def _page_serial(file: str) -> str:
    try:
        return unit_serial_number(_content(file))
    except OSError:
        return ""


def _paths(folder: Path, *, dev_root: Path, ask_virtio: AskVirtio) -> tuple[Disk, ...]:
    """The disks below a multipath map. A path that has left this node leaves a link to nowhere, and is none any more.

    Where one cannot be read there is none, so that the map stays known, and belongs to nobody.
    """
    if not _line(f"{folder}/dm/uuid").startswith(_MULTIPATH):
        return ()
    links = [folder / "slaves" / name for name in sorted(_names(folder / "slaves"))]
    present = [link.resolve() for link in links if link.exists()]
    try:
        return tuple(read(path, dev_root=dev_root, ask_virtio=ask_virtio, below=folder.name) for path in present)
    except (OSError, ValueError):
        return ()


def _holders(folder: Path, *, but: str) -> tuple[str, ...]:
    return tuple(_described(folder / "holders" / name) for name in _names(folder / "holders") if name != but)


def _described(holder: Path) -> str:
    """A device with the names by which an operator finds whose it is."""
    facts = [_line(f"{holder}/{attribute}") for attribute in ("dm/name", "dm/uuid", "md/level")]
    known = ", ".join(fact for fact in facts if fact)
    return f"{holder.name} ({known})" if known else holder.name


def _partitions(folder: Path, attributes: set[str]) -> tuple[str, ...]:
    """A partition is a folder in the disk's, and its name begins with the disk's."""
    return tuple(name for name in attributes if name.startswith(folder.name) and (folder / name / "partition").exists())


def _merged(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({name for group in groups for name in group}))


def _names(folder: Path) -> set[str]:
    """What is in a folder; nothing when it is not there."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _line(file: str) -> str:
    """The content of an attribute; empty where there is none."""
    try:
        return _content(file).decode().strip()
    except OSError:
        return ""


def _content(file: str) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE_BYTES)
    finally:
        os.close(fd)


def _text(raw: bytes) -> str:
    """Serials are padded with spaces or zeroes; one that is not plain ASCII is none of ours."""
    try:
        return raw.decode("ascii").strip(" \0\n")
    except UnicodeDecodeError:
        return ""
