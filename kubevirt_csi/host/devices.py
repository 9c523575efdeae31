"""An opened disk: its identity, its raw content at the edges, the mark of a started format, and its flush.

The first open file pins the disk: as long as it is open the kernel gives neither the name nor the device number to
another disk, so programs may then be given the path. Every read and write opens the device once more in its own thread
(see ``blocking``) and compares the device number, so nothing ever goes to another disk.

Reads bypass the page cache (O_DIRECT): what counts is what the device returns, not what somebody wrote into the cache.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from io import FileIO
from typing import TypeVar

from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.telltales import Telltale
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable
from kubevirt_csi.host import blocking

T = TypeVar("T")

MIB = 1024 * 1024
CHUNK_BYTES = 4 * MIB
IO_SECONDS = 60.0
FLUSH_SECONDS = 600.0
"""A flush may have to write all that a pod left in the page cache."""

MARK_BYTES = 4096
"""One block of the largest sector size; it lies at the disk's size minus 1 MiB."""
_MAGIC = b"kubevirt-csi format started\n"


class OpenDevice:
    """Implements ``ports.host.Device``."""

    def __init__(self, disk: Disk, *, pin: int, read_again: Callable[[Disk], Disk]) -> None:
        self._disk = disk
        self._pin = pin
        self._read_again = read_again

    @classmethod
    @asynccontextmanager
    async def open(cls, disk: Disk, *, read_again: Callable[[Disk], Disk]) -> AsyncIterator[OpenDevice]:
        """Opens the disk, and closes it at the end. ``read_again`` reads a disk's identity anew from the kernel."""
        async with pinned(disk) as pin:
            yield cls(disk, pin=pin, read_again=read_again)

    @property
    def disk(self) -> Disk:
        """As it was read when it was opened."""
        return self._disk

    async def verify(self) -> None:
        """Reads serial, device number and size again.

        Raises:
            Unavailable: they are no longer those of ``disk``.
        """
        size = await self._on(os.O_RDONLY, _size, what="reading the size of")
        now = await blocking.call(lambda: self._read_again(self._disk), what="reading sysfs", timeout=IO_SECONDS)
        if now.identity != self._disk.identity:
            raise Unavailable(f"disk {self._disk} became {now} while it was looked at; nothing was changed")
        if size != now.size_bytes:
            raise Unavailable(f"disk {now} has {size} bytes when opened; nothing was changed")

    async def in_use(self) -> bool:
        """Whether the kernel or another program has it open exclusively (mounted anywhere, part of a raid...)."""
        try:
            await self._on(os.O_RDONLY | os.O_EXCL, lambda _fd: None, what="opening")
        except FailedPrecondition:
            return True
        return False

    async def first_written(self, places: Sequence[Telltale]) -> Telltale | None:
        """The first of the places that is not all zero, read from the device and not from a cache; None if all are."""

        def look(fd: int) -> Telltale | None:
            return next((p for p in places if not _is_zero(_read(fd, start=p.start, length=p.length))), None)

        return await self._on(os.O_RDONLY | os.O_DIRECT, look, what="looking for data on")

    async def zeroes(self, start: int) -> AsyncIterator[int]:
        """Reads from ``start`` (bytes) to the end and yields the position up to which all was zero, ever further.

        The iteration ends early where something else than zero was read.
        """
        position = start
        while position < self._disk.size_bytes:
            length = min(CHUNK_BYTES, self._disk.size_bytes - position)
            if not await self._chunk_is_zero(position, length):
                return
            position += length
            yield position

    async def read_mark(self, *, of_size: int | None = None) -> str | None:
        """The volume id in the mark of a started format; None when there is no mark, nor room for one.

        ``of_size`` looks where the mark was written when the disk had this size.
        """
        start = self._place_of_mark(of_size)
        if start is None:
            return None
        what = "reading the mark of"
        block = await self._on(
            os.O_RDONLY | os.O_DIRECT, lambda fd: _read(fd, start=start, length=MARK_BYTES), what=what
        )
        return _volume_in(block)

    async def write_mark(self, volume_id: str) -> None:
        """Writes the mark and flushes it to the disk. The device must not be in use."""
        await self._write_mark_block(_mark(volume_id), start=self._disk.size_bytes - MIB)

    async def erase_mark(self, volume_id: str, *, of_size: int | None = None) -> None:
        """Replaces the volume's mark by zeroes and flushes them; a mark that mkfs has overwritten is no error.

        Only a mark that is still there is erased: where it was, the new file system may keep data of its own.
        """
        start = self._place_of_mark(of_size)
        if start is not None and await self.read_mark(of_size=of_size) == volume_id:
            await self._write_mark_block(bytes(MARK_BYTES), start=start)

    async def flush(self) -> None:
        """Writes everything that the kernel still holds back for this device to it.

        It is told of every write that failed since the disk was opened, also when mkfs has heard of it and gone on: the
        kernel tells each open file once, and one that is opened later nothing. Source: kernel lib/errseq.c.
        """
        opened = os.dup(self._pin)  # the thread's own, which it closes even when nobody waits any more

        def work() -> None:
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

        await blocking.call(work, what=f"flushing {self._disk.path}", timeout=FLUSH_SECONDS)

    async def _chunk_is_zero(self, position: int, length: int) -> bool:
        return await self._on(
            os.O_RDONLY | os.O_DIRECT,
            lambda fd: _is_zero(_read(fd, start=position, length=length)),
            what=f"reading at {position} of",
        )

    def _place_of_mark(self, of_size: int | None) -> int | None:
        """Where the mark lies on a disk of this size; None where this one cannot have or read it."""
        size = self._disk.size_bytes if of_size is None else of_size
        fits = 2 * MIB <= size <= self._disk.size_bytes
        return size - MIB if fits and (of_size is None or size % MARK_BYTES == 0) else None

    async def _write_mark_block(self, block: bytes, *, start: int) -> None:
        def write(fd: int) -> None:
            with mmap.mmap(-1, MARK_BYTES) as buffer:  # O_DIRECT wants aligned memory
                buffer[:] = block
                if os.pwritev(fd, [buffer], start) != MARK_BYTES:
                    raise OSError(errno.EIO, "the mark was written in part")
            os.fsync(fd)
            if _read(fd, start=start, length=MARK_BYTES) != block:
                raise OSError(errno.EIO, "the disk does not return what was written to it")

        await self._on(os.O_RDWR | os.O_EXCL | os.O_DIRECT, write, what="writing the mark of")

    async def _on(self, flags: int, use: Callable[[int], T], *, what: str) -> T:
        return await _on(self._disk, flags, use, what=what)


async def read(disk: Disk, *, start: int, length: int) -> bytes:
    """Reads bytes of the disk, from the device and not from a cache; ``start`` and ``length`` in whole 4 KiB.

    Raises:
        Unavailable: they cannot be read, or the disk's node is another disk's by now.
    """
    return await _on(
        disk, os.O_RDONLY | os.O_DIRECT, lambda fd: _read(fd, start=start, length=length), what=f"reading at {start} of"
    )


async def _on(disk: Disk, flags: int, use: Callable[[int], T], *, what: str) -> T:
    """Opens the device anew in a thread, proves that it is the same one, and uses it there."""

    def work() -> T:
        fd = _open(disk, flags)
        try:
            return use(fd)
        finally:
            os.close(fd)

    return await blocking.call(work, what=f"{what} {disk.path}", timeout=IO_SECONDS)


@asynccontextmanager
async def pinned(disk: Disk) -> AsyncIterator[int]:
    """The disk opened for reading, as a file descriptor: meanwhile no other disk gets its name or number.

    Raises:
        Unavailable: it cannot be opened, or its node is another disk's.
    """
    # An object and not a number, so that it is closed even when nobody waits for it any more.
    what = f"opening {disk.path}"
    pin = await blocking.call(lambda: FileIO(_open(disk, os.O_RDONLY)), what=what, timeout=IO_SECONDS)
    try:
        yield pin.fileno()
    finally:
        await blocking.call(pin.close, what=f"closing {disk.path}", timeout=IO_SECONDS)


def _open(disk: Disk, flags: int) -> int:
    """Opens the disk's node; it must be a block device with the disk's number."""
    try:
        fd = os.open(disk.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise FailedPrecondition(f"disk {disk} is in use by the kernel or another program") from error
        raise Unavailable(f"disk {disk} cannot be opened: {error}") from error
    found = os.fstat(fd)
    number = DeviceNumber(os.major(found.st_rdev), os.minor(found.st_rdev))
    if stat.S_ISBLK(found.st_mode) and number == disk.number:
        return fd
    os.close(fd)
    raise Unavailable(f"{disk.path} is not the device node of disk {disk}: it has number {number}")


def _size(fd: int) -> int:
    return os.lseek(fd, 0, os.SEEK_END)


def _read(fd: int, *, start: int, length: int) -> bytes:
    with mmap.mmap(-1, length) as buffer:  # O_DIRECT wants aligned memory
        read = os.preadv(fd, [buffer], start)
        if read != length:
            raise OSError(errno.EIO, f"{read} of {length} bytes could be read at {start}")
        return bytes(buffer)


def _is_zero(data: bytes) -> bool:
    return data == bytes(len(data))


def _mark(volume_id: str) -> bytes:
    text = _MAGIC + json.dumps({"volume": volume_id}).encode() + b"\n"
    if len(text) > MARK_BYTES:
        raise Internal(f"volume id of {len(volume_id)} characters does not fit into the mark")
    return text.ljust(MARK_BYTES, b"\0")


def _volume_in(block: bytes) -> str | None:
    """The volume of a mark; a damaged mark is one of an unknown volume, never "no mark"."""
    if not block.startswith(_MAGIC):
        return None
    try:
        return str(json.loads(block[len(_MAGIC) :].rstrip(b"\0"))["volume"])
    except (ValueError, KeyError, TypeError):
        return ""
