"""Superblocks decoded from bytes that were laid out by hand after the format documents."""

from __future__ import annotations

import struct

import pytest

from kubevirt_csi.host.superblocks import HEAD_BYTES, found_in
from kubevirt_csi.ports.host import SuperBlock


def head(*parts: tuple[int, bytes]) -> bytes:
    """The first bytes of a disk, zero but for these."""
    made = bytearray(HEAD_BYTES)
    for at, data in parts:
        made[at : at + len(data)] = data
    return bytes(made)


def ext4(blocks: int, *, exponent: int = 2, wide: bool = True) -> tuple[tuple[int, bytes], ...]:
    return (
        (1024 + 0x04, struct.pack("<I", blocks & 0xFFFFFFFF)),
        (1024 + 0x18, struct.pack("<I", exponent)),
        (1024 + 0x38, b"\x53\xef"),
        (1024 + 0x60, struct.pack("<I", 0x80 if wide else 0)),
        (1024 + 0x150, struct.pack("<I", blocks >> 32)),
    )


XFS = (0, b"XFSB" + struct.pack(">IQ", 4096, 2**30))
BTRFS = ((65536 + 0x40, b"_BHRfS_M"), (65536 + 0xC9, struct.pack("<QQ", 1, 2**41 + 4096)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(ext4(2**18), SuperBlock(fs_type="ext4", size_bytes=2**30), id="ext4"),
        pytest.param(ext4(2**33 + 1), SuperBlock(fs_type="ext4", size_bytes=2**45 + 4096), id="ext4 beyond 16 TiB"),
        pytest.param(
            ext4(2**33 + 1, wide=False), SuperBlock(fs_type="ext4", size_bytes=4096), id="ext4 without a high half"
        ),
        pytest.param(ext4(2**10, exponent=0), SuperBlock(fs_type="ext4", size_bytes=2**20), id="ext4, small blocks"),
        pytest.param((XFS,), SuperBlock(fs_type="xfs", size_bytes=2**42), id="xfs"),
        pytest.param(BTRFS, SuperBlock(fs_type="btrfs", size_bytes=2**41 + 4096), id="btrfs"),
    ],
)
def test_type_and_size_are_read_where_the_format_has_them(
    content: tuple[tuple[int, bytes], ...], expected: SuperBlock
) -> None:
    assert found_in(head(*content)) == (expected,)


def test_nothing_is_found_in_zeroes_and_two_are_found_where_two_are() -> None:
    assert found_in(head()) == ()
    assert [block.fs_type for block in found_in(head(XFS, *BTRFS))] == ["xfs", "btrfs"]


def test_a_damaged_exponent_makes_a_size_that_no_disk_has_and_no_crash() -> None:
    (block,) = found_in(head(*ext4(1, exponent=2**32 - 1)))
    assert block.size_bytes >= 2**64
