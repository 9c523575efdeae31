"""Superblocks of ext4, xfs and btrfs: what a file system claims about itself, read from the bytes on the disk.

Only what is asked about is decoded: the type, and how many bytes of the device the file system counts as its own. It
knows nothing of devices; its input is the disk's first bytes. The surprising fact: an xfs keeps its numbers big-endian,
the others little-endian, and a btrfs names its own share of the device apart from that of all its devices.

Sources: kernel Documentation/filesystems/ext4/super.rst; kernel fs/xfs/libxfs/xfs_format.h (struct xfs_dsb); btrfs
documentation, "On-disk format" (superblock, dev_item).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from kubevirt_csi.ports.host import SuperBlock

HEAD_BYTES = 128 * 1024
"""All three lie within this: ext4 at 1 KiB, xfs at 0, btrfs at 64 KiB."""

_EXT4_AT, _XFS_AT, _BTRFS_AT = 1024, 0, 64 * 1024
_EXT4_64BIT = 0x80
"""In s_feature_incompat: the number of blocks has a high half."""


class _Kind(NamedTuple):
    """One type: its magic, where on the disk, and how the bytes from ``at`` on tell the size."""

    fs_type: str
    at: int
    magic_at: int
    magic: bytes
    size: Callable[[memoryview], int]


def found_in(head: bytes) -> tuple[SuperBlock, ...]:
    """Every superblock in the first ``HEAD_BYTES`` of a disk; more than one only where an old one was left behind."""
    return tuple(
        SuperBlock(fs_type=k.fs_type, size_bytes=k.size(memoryview(head)[k.at :])) for k in _KINDS if _has(head, k)
    )


def _has(head: bytes, kind: _Kind) -> bool:
    at = kind.at + kind.magic_at
    return head[at : at + len(kind.magic)] == kind.magic


def _ext4_size(block: memoryview) -> int:
    (blocks,) = struct.unpack_from("<I", block, 0x4)  # s_blocks_count_lo
    (exponent,) = struct.unpack_from("<I", block, 0x18)  # s_log_block_size
    (incompatible,) = struct.unpack_from("<I", block, 0x60)  # s_feature_incompat
    if incompatible & _EXT4_64BIT:
        blocks += struct.unpack_from("<I", block, 0x150)[0] << 32  # s_blocks_count_hi
    return int(blocks << min(10 + exponent, 64))


def _xfs_size(block: memoryview) -> int:
    block_bytes, blocks = struct.unpack_from(">IQ", block, 4)  # sb_blocksize, sb_dblocks
    return int(block_bytes * blocks)


def _btrfs_size(block: memoryview) -> int:
    return int(struct.unpack_from("<Q", block, 0xC9 + 8)[0])  # dev_item.total_bytes


_KINDS = (
    _Kind("ext4", _EXT4_AT, 0x38, b"\x53\xef", _ext4_size),
    _Kind("xfs", _XFS_AT, 0, b"XFSB", _xfs_size),
    _Kind("btrfs", _BTRFS_AT, 0x40, b"_BHRfS_M", _btrfs_size),
)
