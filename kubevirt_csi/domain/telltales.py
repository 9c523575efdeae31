"""Where a disk shows that it is not blank, even when the place where one would look first is damaged.

The first and the last MiB hold what almost everything leaves: partition tables, LVM, LUKS and raid headers, primary
superblocks. A file system whose first MiB was lost still has copies of its superblock further in, and at these places
its rescuer will look for them, so they have to be zero too before a disk counts as blank. Geometry only; no I/O.

Sources: kernel Documentation/filesystems/ext4/super.rst and blockgroup.rst (copies in group 1 and the powers of 3, 5
and 7); mkfs.xfs(8) and xfs_format.h (a copy at the start of each allocation group); btrfs "On-disk format" (mirrors).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

MIB = 1024**2
TIB = 1024**4
BLOCK_BYTES = 4096
"""What is read at a place: a multiple of every sector size."""

_EXT4_BLOCK_BYTES = (1024, 2048, 4096, 65536)
_EXT4_BASES = (3, 5, 7)
_XFS_GROUPS = (2, 4, 8, 16, 32)
"""mkfs.xfs divides a plain disk into 4 groups up to 4 TiB and 1 TiB each beyond; below a striped device into more."""
_BTRFS_MIRRORS = (64 * MIB, 256 * 1024 * MIB)


@dataclass(frozen=True, slots=True, order=True)
class Telltale:
    """Bytes of a disk that are zero if it is blank; ``what`` names them for people."""

    start: int
    length: int
    what: str


def telltales(size_bytes: int) -> tuple[Telltale, ...]:
    """All places to read on a disk of this size, by their start; none reaches over its end."""
    length = min(MIB, size_bytes)
    edges = {Telltale(0, length, "its first MiB"), Telltale(size_bytes - length, length, "its last MiB")}
    within = {place for place in _copies(size_bytes) if length <= place.start <= size_bytes - length - BLOCK_BYTES}
    return tuple(sorted(place for place in edges | within if place.length))


def _copies(size_bytes: int) -> Iterator[Telltale]:
    for start in _ext4(size_bytes):
        yield Telltale(start, BLOCK_BYTES, f"byte {start}, where an ext4 has a copy of its superblock,")
    for start in _xfs(size_bytes):
        yield Telltale(start, BLOCK_BYTES, f"byte {start}, where an xfs has a copy of its superblock,")
    for start in _BTRFS_MIRRORS:
        yield Telltale(start, BLOCK_BYTES, f"byte {start}, where a btrfs has a copy of its superblock,")


def _ext4(size_bytes: int) -> Iterator[int]:
    for block_bytes in _EXT4_BLOCK_BYTES:
        group_bytes = 8 * block_bytes * block_bytes  # one block is the bitmap of its group's blocks
        yield group_bytes
        for base in _EXT4_BASES:
            powers = (base**exponent * group_bytes for exponent in range(1, 64))
            yield from takewhile(lambda start: start < size_bytes, powers)


def _xfs(size_bytes: int) -> Iterator[int]:
    blocks = max(1, size_bytes // BLOCK_BYTES)
    for groups in _XFS_GROUPS:
        group_bytes = -(-blocks // groups) * BLOCK_BYTES
        yield from range(group_bytes, size_bytes, group_bytes)
    yield from range(TIB, size_bytes, TIB)
