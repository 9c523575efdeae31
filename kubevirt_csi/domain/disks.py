"""A disk as the kernel shows it, and which one of them is a volume's.

Nothing here trusts a device name: names change over a reboot and are given again. What identifies a disk is its serial,
and what identifies an opened one is its device number. Several disks with one serial are no disk at all, unless they
are the paths of one multipath map: then the map is the disk, and writing to one of its paths would be the mistake.
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

    ``serial`` is empty where the kernel tells none that we know how to read, ``bus`` None for what is on none of ours.
    A disk that is ``mute`` did not answer when it was asked for its serial, so it may be anybody's.

    ``holders`` are the devices built on top of it (device mapper, raid), as an operator may know them, ``partitions``
    the names of its partitions. ``sequence`` is another number each time a disk is plugged in, 0 where the kernel
    (before 5.15) does not count.

    ``paths`` are the disks that a device-mapper multipath map consists of, none for anything else. The map has the
    serial and the bus that all its paths show, and none where they differ; what else is built on a path counts as
    built on the map.
    """

    name: str
    path: str
    number: DeviceNumber
    size_bytes: int
    serial: str = ""
    bus: Bus | None = None
    mute: bool = False
    read_only: bool = False
    holders: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    sequence: int = 0
    paths: tuple[Disk, ...] = ()

    def __str__(self) -> str:
        over = f", multipath over {', '.join(path.path for path in self.paths)}" if self.paths else ""
        return f"{self.path} ({self.number}, serial {self.serial or 'unknown'}, {self.size_bytes} bytes{over})"

    @property
    def identity(self) -> tuple[object, ...]:
        """What must not change while the disk is worked on, of the disk itself and of each path to it."""
        own = (self.number, self.sequence, self.serial, self.size_bytes)
        return (*own, *(path.identity for path in self.paths))


def showing(disks: Iterable[Disk], serial: str) -> tuple[Disk, ...]:
    """All disks that show this serial, whole or as virtio cuts it; a multipath map stands for its paths."""
    found = [d for d in disks if d.bus is not None and belongs(seen=d.serial, wanted=serial, bus=d.bus)]
    mapped = {path.number for disk in found for path in disk.paths}
    return tuple(disk for disk in found if disk.number not in mapped)


def matching(disks: Iterable[Disk], serial: str) -> Disk | None:
    """The one disk that shows this serial; None when there is none yet.

    Raises:
        FailedPrecondition: several disks show it, so none can be told to be the volume's. All are named.
    """
    found = showing(disks, serial)
    if len(found) > 1:
        raise FailedPrecondition(
            f"{len(found)} disks of this node show serial {serial}: {describe(found)}; nothing was touched. If these "
            "are two volumes, detach one of them in the infra cluster. If they are paths to one disk, one multipath "
            "map has to sit on top of all of them and of nothing else: look at `multipath -ll` on this node"
        )
    return found[0] if found else None


def mute(disks: Iterable[Disk]) -> tuple[Disk, ...]:
    """The disks that may be anybody's: as long as there are any, no volume is known to have no disk here."""
    return tuple(disk for disk in disks if disk.mute)


def numbered(disks: Iterable[Disk], number: DeviceNumber) -> Disk | None:
    """The disk with this device number; None when it has left or the number is no whole disk's."""
    return next((disk for disk in disks if disk.number == number), None)


def describe(disks: Sequence[Disk]) -> str:
    """The disks with all that tells one from another, for error texts."""
    return ", ".join(_described(disk) for disk in disks) or "none"


def _described(disk: Disk) -> str:
    bus = disk.bus.value if disk.bus is not None else "unknown"
    over = f", over {', '.join(path.path for path in disk.paths)}" if disk.paths else ""
    serial = disk.serial or ("not told, it does not answer" if disk.mute else "unknown")
    return f"{disk.path} (serial {serial}, bus {bus}, {disk.size_bytes} bytes{over})"
