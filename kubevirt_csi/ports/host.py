"""What the node's operations need from the worker's operating system.

Every method either does its one thing or raises a ``DriverError``; waiting and deciding are the operations' business.
Each has a deadline of its own, except making and checking a file system, which are never cut in half.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from kubevirt_csi.domain.blank import Probe
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.health import Ailment
from kubevirt_csi.domain.limits import Room
from kubevirt_csi.domain.mountinfo import MountEntry, MountTable
from kubevirt_csi.domain.telltales import Telltale


class Device(Protocol):
    """An opened disk. While it is open its name and number cannot be given to another disk."""

    @property
    def disk(self) -> Disk:
        """As it was read when it was opened."""

    async def verify(self) -> None:
        """Reads serial, device number and size again.

        Raises:
            Unavailable: they are no longer those of ``disk``.
        """

    async def in_use(self) -> bool:
        """Whether the kernel or another program has it open exclusively (mounted anywhere, part of a raid...)."""

    async def first_written(self, places: Sequence[Telltale]) -> Telltale | None:
        """The first of the places that is not all zero, read from the device and not from a cache; None if all are."""

    def zeroes(self, start: int) -> AsyncIterator[int]:
        """Reads from ``start`` (bytes) to the end and yields the position up to which all was zero, ever further.

        The iteration ends early where something else than zero was read.
        """

    async def read_mark(self, *, of_size: int | None = None) -> str | None:
        """The volume id in the mark of a started format; None when there is no mark.

        ``of_size`` looks where the mark was written when the disk had this size (bytes), before it has grown.
        """

    async def write_mark(self, volume_id: str) -> None:
        """Writes the mark and flushes it to the disk. The device must not be in use."""

    async def erase_mark(self, volume_id: str, *, of_size: int | None = None) -> None:
        """Replaces the volume's mark by zeroes and flushes them; a mark that mkfs has overwritten is no error."""

    async def flush(self) -> None:
        """Writes everything that the kernel still holds back for this device to it."""


class Disks(Protocol):
    """The disks of this node, read from the kernel at each call."""

    async def all(self) -> tuple[Disk, ...]:
        """Every whole block device. One that vanishes while it is read is left out."""

    async def rescan(self) -> None:
        """Asks the kernel and udev to look once more for disks and their serials. That nothing is found is no error."""

    def opened(self, disk: Disk) -> AbstractAsyncContextManager[Device]:
        """Opens the disk and verifies that the opened device is that disk.

        Raises:
            Unavailable: it has left, or its name now belongs to another disk.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperBlock:
    """What a file system says of itself: its type, and how many bytes of its disk it counts as its own."""

    fs_type: str
    size_bytes: int


class Hotplug(Protocol):
    """Where the hypervisor can plug more disks into this node."""

    async def room(self) -> Room:
        """What is there at this moment."""


class Filesystems(Protocol):
    """Programs that know file systems."""

    async def probe(self, disk: Disk) -> Probe:
        """What is on the disk. That nothing was recognised is an answer; that it could not be read is an error."""

    async def superblock(self, disk: Disk, fs_type: str) -> SuperBlock:
        """What the file system of this type on the disk claims, as it is on the disk now.

        While it is mounted the kernel may know better; then ask the mount.

        Raises:
            FailedPrecondition: the disk has no superblock of this type, or it is one that is not known here.
        """

    async def make(self, disk: Disk, fs_type: str, *, options: tuple[str, ...] = ()) -> None:
        """Makes a file system, whatever is there. Runs to its end even when the caller is cancelled.

        ``options`` are arguments for mkfs that ``domain.mkfs`` has let pass.
        """

    async def wipe(self, disk: Disk) -> None:
        """Takes every signature off the disk that probing would find. Runs to its end as ``make`` does."""

    async def check(self, disk: Disk, fs_type: str) -> None:
        """Repairs what is safe to repair. Only for a disk that is not in use. Nothing is done for a journal-only type.

        Raises:
            FailedPrecondition: damage is left that a person has to look at.
        """


class Resizing(Protocol):
    """Growth of disks and of what is mounted from them."""

    async def reread_size(self, disk: Disk) -> None:
        """Asks the kernel to read the disk's size anew. That a disk tells it by itself is no error."""

    async def grow(self, disk: Disk, fs_type: str, *, mount_point: str) -> None:
        """Grows the file system that is mounted there until it fills its disk; one that does is no error.

        Runs to its end even when the caller is cancelled.

        Raises:
            Internal: it does not grow.
        """


class Mounts(Protocol):
    """The mount table and changes to it. Paths are absolute and spelt as ``Places.canonical`` does."""

    async def table(self) -> MountTable:
        """All mounts that this process sees."""

    async def mount(self, *, device_path: str, target: str, fs_type: str, options: tuple[str, ...]) -> None:
        """Mounts a file system on an existing folder."""

    async def bind(self, *, source: str, target: str, read_only: bool) -> None:
        """Shows the mount or device node at ``source`` at ``target`` too, read-only from its first moment if asked."""

    async def unmount(self, target: str) -> None:
        """Takes one mount off the path, never lazily.

        Raises:
            FailedPrecondition: it is busy.
        """


class Places(Protocol):
    """The folders and files that mounts are put on."""

    def canonical(self, path: str) -> str:
        """The path as the mount table spells it: symbolic links in its folder are resolved."""

    async def exists(self, path: str) -> bool:
        """Whether there is anything at the path, even a mount that no longer answers."""

    async def device_at(self, path: str) -> DeviceNumber | None:
        """The number of the device node at this path; None when there is something else or nothing."""

    async def make_directory(self, path: str) -> None:
        """Makes an empty folder; an empty one that exists is no error. The parent must exist.

        Raises:
            FailedPrecondition: something is there already.
        """

    async def make_file(self, path: str) -> None:
        """Makes an empty file; an empty one that exists is no error. The parent must exist.

        Raises:
            FailedPrecondition: something is there already.
        """

    async def remove(self, path: str) -> None:
        """Removes an empty folder or an empty regular file; a path that is gone is no error.

        Raises:
            Internal: anything else is there; it is kept.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemUsage:
    """Bytes and inodes of a mounted file system; ``available`` is what ordinary users may still use."""

    total_bytes: int
    available_bytes: int
    used_bytes: int
    total_inodes: int
    available_inodes: int
    used_inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a look at a mounted volume has shown.

    ``figures`` are the usage of a file system or the bytes of a raw device, None where it did not tell; ``ailments``
    are what is wrong with it.
    """

    figures: FileSystemUsage | int | None
    ailments: tuple[Ailment, ...] = ()


class Usage(Protocol):
    """Looks at mounted volumes: how full they are, and whether their file system and device still work."""

    def look(self, mounted: MountEntry) -> asyncio.Future[Finding]:
        """Looks at what is mounted there, in a thread of its own that may never return.

        What does not work is found, not raised. The caller sees to it that there are not too many such threads.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the node remembers of a volume that it may have written to: the serial by which its disk is found."""

    volume_id: str
    serial: str


class Records(Protocol):
    """The node's own memory of volumes, over restarts and reboots. What is in it counts as used."""

    async def remember(self, record: Record) -> None:
        """Writes it durably; doing so again is no error."""

    async def recall(self, volume_id: str) -> Record | None:
        """The record of the volume; None when this node never used it."""

    async def known(self) -> tuple[Record, ...]:
        """The records of all volumes, in the order of their ids; a damaged one is left out."""


class Trimmer(Protocol):
    """Tells disks which of their blocks are not in use."""

    async def trim(self, path: str) -> int | None:
        """Has the file system mounted at the path discard what it does not use. A cancelled call ends the work.

        Returns:
            The bytes discarded; None when the disk cannot discard.

        Raises:
            Unavailable: it did not end in time, and was ended.
            Internal: it failed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One worker's operating system: all that the node's operations need of it."""

    disks: Disks
    hotplug: Hotplug
    filesystems: Filesystems
    resizing: Resizing
    trimmer: Trimmer
    mounts: Mounts
    places: Places
    usage: Usage
    records: Records
