"""What leaves a trace on a disk without being a file system here, and file systems that lost their beginning."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.host.mkfs import ext4_bytes
from tests.host.conftest import Plugin
from tests.host.machine import MIB, PluggedDisk, run
from tests.host.test_never_format_by_accident import refuse
from tests.host.volumes import SERIAL, SMALLEST_XFS, PodVolume

SMALL = 32 * MIB
SIZE = 384 * MIB
"""An ext4 of this size has a copy of its superblock in group 1, at 128 MiB."""


def lvm(disk: PluggedDisk) -> None:
    """An LVM2 label as lib/format_text/layout.h has it: sector 1, its CRC over all from offset 20 on."""
    header = bytearray(512)
    header[0:8], header[8:16], header[20:24], header[24:32] = b"LABELONE", b"\1" + bytes(7), b"\x20\0\0\0", b"LVM2 001"
    header[32:64] = b"0123456789abcdefghijklmnopqrstuv"
    header[16:20] = (zlib.crc32(header[20:], 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF).to_bytes(4, "little")
    disk.write(512, bytes(header))


def luks(disk: PluggedDisk) -> None:
    """A LUKS1 header: magic and version."""
    disk.write(0, b"LUKS\xba\xbe\0\1")


def luks_without_its_first_header(disk: PluggedDisk) -> None:
    """The second header of a LUKS2, at 16 KiB: magic, version 2, and its own offset."""
    header = bytearray(4096)
    header[0:8], header[8:16] = b"SKUL\xba\xbe\0\2", (0x4000).to_bytes(8, "big")
    header[256:264] = (0x4000).to_bytes(8, "big")
    disk.write(0x4000, bytes(header))


def raid(disk: PluggedDisk) -> None:
    """A Linux raid 1.2 superblock at 4 KiB: magic, major version 1, its own position in sectors."""
    header = bytearray(256)
    header[0:4], header[4:8], header[144:152] = b"\xfc\x4e\x2b\xa9", b"\1\0\0\0", (8).to_bytes(8, "little")
    disk.write(4096, bytes(header))


def raid_at_the_end(disk: PluggedDisk) -> None:
    """A Linux raid 0.90 superblock in the last 64 KiB."""
    disk.write(SMALL - 64 * 1024, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")


def swap(disk: PluggedDisk) -> None:
    run("mkswap", str(disk.path))


def partitions(disk: PluggedDisk) -> None:
    """A GPT without entries, both copies. See the UEFI specification, "GPT header"."""
    last = SMALL // 512 - 1
    for at, other, entries in ((1, last, 2), (last, 1, last - 32)):
        table = bytes(128 * 128)
        fields = struct.pack(
            "<QQQQ16sQIII", at, other, 34, last - 33, bytes(range(16)), entries, 128, 128, zlib.crc32(table)
        )
        header = b"EFI PART" + struct.pack("<III", 0x10000, 92, 0) + bytes(4) + fields
        disk.write(at * 512, header[:16] + struct.pack("<I", zlib.crc32(header)) + header[20:])
    disk.write(446, struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff\xff\xff", 1, last))
    disk.write(510, b"\x55\xaa")


def partitions_whose_first_copy_was_zeroed(disk: PluggedDisk) -> None:
    partitions(disk)
    disk.write(0, bytes(MIB))


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (lvm, "LVM2_member signature|first MiB is not zero"),
        (luks, "crypto_LUKS signature|first MiB is not zero"),
        (luks_without_its_first_header, "crypto_LUKS signature|first MiB is not zero"),
        (raid, "linux_raid_member signature|first MiB is not zero"),
        (raid_at_the_end, "linux_raid_member signature|last MiB is not zero"),
        (swap, "swap signature"),
        (partitions, "gpt signature|has partitions"),
        (partitions_whose_first_copy_was_zeroed, "gpt signature|last MiB is not zero"),
    ],
)
async def test_what_belongs_to_something_else_is_refused(
    plugin: Plugin, put: Callable[[PluggedDisk], None], words: str
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SMALL)
    put(disk)
    await refuse(PodVolume(plugin), disk, match=words)


@pytest.mark.parametrize(
    ("make", "size", "copy"),
    [
        pytest.param(("mkfs.ext4", "-q", "-F"), SIZE, "an ext4", id="ext4"),
        pytest.param(("mkfs.ext4", "-q", "-F", "-b", "1024"), SIZE, "an ext4", id="ext4, blocks of 1 KiB"),
        pytest.param(("mkfs.xfs", "-q", "-f"), SMALLEST_XFS, "an xfs", id="xfs"),
        pytest.param(("mkfs.xfs", "-q", "-f", "-d", "agcount=8"), 1027 * MIB, "an xfs", id="xfs, 8 groups"),
        pytest.param(("mkfs.btrfs", "-q", "-f"), SIZE, "a btrfs", id="btrfs"),
    ],
)
async def test_a_file_system_whose_beginning_was_zeroed_is_never_blank_because_its_copies_are_read(
    plugin: Plugin, make: tuple[str, ...], size: int, copy: str
) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=size)
    run(*make, str(disk.path))
    for place in (0, size - MIB):
        disk.write(place, bytes(MIB))
    assert run("sh", "-c", f"blkid -p {disk.path} || test $? = 2") == ""
    await refuse(PodVolume(plugin), disk, match=f"where {copy} has a copy of its superblock, is not zero")


async def test_an_ext4_whose_superblock_alone_was_zeroed_can_still_be_rescued_afterwards(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SIZE)
    volume = PodVolume(plugin)
    await volume.stage()
    (volume.staging / "file").write_text("kept")
    await volume.unstage()
    plugin.commands.ran.clear()
    disk.write(0, bytes(4096))
    await refuse(PodVolume(plugin, content=Content.USED), disk, match="its first MiB is not zero")
    run("sh", "-c", f"e2fsck -y -b {128 * MIB // 4096} -B 4096 {disk.path}; test $? -lt 4")
    await volume.stage()
    assert (volume.staging / "file").read_text() == "kept"
    assert ext4_bytes(SIZE) == SIZE


@pytest.mark.parametrize("size", [512, 4096, MIB, 2 * MIB - 512])
async def test_a_disk_too_small_to_prove_anything_is_refused_as_too_small(plugin: Plugin, size: int) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=size)
    await refuse(PodVolume(plugin), disk, match="too small for ext4, which needs at least 8388608 bytes")
