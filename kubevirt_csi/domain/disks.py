"""A disk as the kernel shows it, and which one of them is a volume's.

Nothing here trusts a device name: names change over a reboot and are given again. What identifies a disk is its serial,
and what identifies an opened one is its device number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kubevirt_csi.domain.serials import belongs
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition


class DeviceNumber(NamedTuple):
    """Major and minor number of a device, as in sysfs ``dev`` and in mountinfo."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> DeviceNumber:
        """Reads ``major:minor``.

        Raises:
            ValueError: the text is something else.
        """
        major, _, minor = text.strip().partition(":")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One whole block device, read at one moment.

    ``serial`` is empty and ``bus`` None where the kernel tells no serial that we know how to read. ``holders`` are the
    devices built on top of it (device mapper, raid), ``partitions`` the names of its partitions. ``sequence`` is
    another number each time a disk is plugged in, 0 where the kernel (before 5.15) does not count.
    """

    name: str
    path: str
    number: DeviceNumber
    size_bytes: int
    serial: str = ""
    bus: Bus | None = None
    read_only: bool = False
    holders: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.path} ({self.number}, serial {self.serial or 'unknown'}, {self.size_bytes} bytes)"


def showing(disks: Iterable[Disk], serial: str) -> tuple[Disk, ...]:
    """All disks that show this serial, whole or as virtio cuts it."""
    return tuple(d for d in disks if d.bus is not None and belongs(seen=d.serial, wanted=serial, bus=d.bus))


def matching(disks: Iterable[Disk], serial: str) -> Disk | None:
    """The one disk that shows this serial; None when there is none yet.

    Raises:
        FailedPrecondition: several disks show it, so none can be told to be the volume's. All are named.
    """
    found = showing(disks, serial)
    if len(found) > 1:
        raise FailedPrecondition(
            f"{len(found)} disks of this node show serial {serial}: {describe(found)}; nothing was touched. "
            "Two paths to one disk or two volumes with one serial: detach one of them in the infra cluster"
        )
    return found[0] if found else None


def numbered(disks: Iterable[Disk], number: DeviceNumber) -> Disk | None:
    """The disk with this device number; None when it has left or the number is no whole disk's."""
    return next((disk for disk in disks if disk.number == number), None)


def describe(disks: Sequence[Disk]) -> str:
    """The disks with their serials, for error texts."""
    return ", ".join(f"{disk.path} (serial {disk.serial or 'unknown'})" for disk in disks) or "none"
