"""Disks of the fake host: the bytes on them, and what an opened one can do.

The mark of a started format and signatures are at places and in words of their own: only that they are bytes on the
disk, which mkfs and others overwrite, is as in reality.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.telltales import Telltale
from kubevirt_csi.errors import Unavailable

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost

MIB = 1024 * 1024
SIGNATURE_AT = 1024
SIGNATURE_LENGTH = 16
READ_STEP = MIB


def is_zero(data: bytearray) -> bool:
    return data == bytes(len(data))


@dataclass(eq=False)
class FakeDisk:
    """A disk and what is on it."""

    shown: Disk
    content: bytearray
    opened_exclusively: bool = False
    spans: int = 0
    """The bytes that the file system claims; 0 stands for all that there are."""

    def sign(self, kind: str) -> None:
        """Puts the signature of a file system, partition table or member onto the disk."""
        self.content[SIGNATURE_AT : SIGNATURE_AT + SIGNATURE_LENGTH] = kind.encode().ljust(SIGNATURE_LENGTH, b"\0")

    @property
    def signature(self) -> str:
        return bytes(self.content[SIGNATURE_AT : SIGNATURE_AT + SIGNATURE_LENGTH]).rstrip(b"\0").decode()


@dataclass
class FakeDevice:
    """An opened disk of the fake host."""

    host: FakeHost
    fake: FakeDisk
    disk: Disk

    async def verify(self) -> None:
        self.host._enter("verify")
        if self.host.disks.get(self.disk.name) is not self.fake or self.fake.shown != self.disk:
            raise Unavailable(f"{self.disk} became another disk")

    async def in_use(self) -> bool:
        self.host._enter("in_use")
        return self.host.in_use(self.fake)

    async def first_written(self, places: Sequence[Telltale]) -> Telltale | None:
        self.host._enter("first_written")
        content = self.fake.content
        return next((p for p in places if not is_zero(content[p.start : p.start + p.length])), None)

    async def zeroes(self, start: int) -> AsyncIterator[int]:
        position = start
        while position < len(self.fake.content):
            self.host._enter("zeroes")
            self.host.calls.append(f"read at {position}")
            if not is_zero(self.fake.content[position : position + READ_STEP]):
                return
            position += READ_STEP
            yield position

    async def read_mark(self, *, of_size: int | None = None) -> str | None:
        block = bytes(self.fake.content[self._mark(of_size)])
        return block[5:].rstrip(b"\0").decode() if block.startswith(b"MARK ") else None

    async def write_mark(self, volume_id: str) -> None:
        self.host._enter("write_mark")
        self.host.calls.append("mark")
        self.fake.content[self._mark(None)] = f"MARK {volume_id}".encode().ljust(64, b"\0")

    async def erase_mark(self, volume_id: str, *, of_size: int | None = None) -> None:
        self.host._enter("erase_mark")
        if await self.read_mark(of_size=of_size) == volume_id:
            self.host.calls.append("erase mark")
            self.fake.content[self._mark(of_size)] = bytes(64)

    def _mark(self, of_size: int | None) -> slice:
        start = (of_size or len(self.fake.content)) - MIB
        return slice(start, start + 64)

    async def flush(self) -> None:
        self.host._enter("flush")
        self.host.calls.append(f"flush {self.disk.name}")
