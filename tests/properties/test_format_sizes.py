"""How much of a disk a file system is made to span, so that the mark of a started format lies outside its metadata."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubevirt_csi.domain.mkfs import SMALLEST_BYTES
from kubevirt_csi.host.mkfs import BLOCK_BYTES, btrfs_bytes, ext4_bytes

MIB = 1024**2
GROUP = 128 * MIB
SECTORS = st.integers(SMALLEST_BYTES["btrfs"] // 512, 2**44 // 512)


@given(SECTORS)
def test_a_btrfs_ends_before_the_mark(sectors: int) -> None:
    size = sectors * 512
    assert size - MIB - BLOCK_BYTES < btrfs_bytes(size) <= size - MIB
    assert btrfs_bytes(size) % BLOCK_BYTES == 0


@given(SECTORS)
def test_the_mark_is_behind_an_ext4_or_far_from_the_beginning_of_its_last_group(sectors: int) -> None:
    size = sectors * 512
    mark, spans = size - MIB, ext4_bytes(size)
    last_group = (spans - 1) // GROUP * GROUP
    assert size - 16 * MIB - BLOCK_BYTES < spans <= size
    assert spans <= mark or last_group == 0 or mark - last_group >= 15 * MIB


@given(SECTORS)
def test_no_file_system_is_made_smaller_than_its_minimum(sectors: int) -> None:
    size = sectors * 512
    assert ext4_bytes(size) >= SMALLEST_BYTES["ext4"]
    assert btrfs_bytes(size) >= SMALLEST_BYTES["btrfs"] - MIB
