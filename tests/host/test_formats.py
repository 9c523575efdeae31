"""The file systems as they are made: features, options, superblocks. Real mkfs, and what it wrote is read back."""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mkfs import SMALLEST_BYTES
from kubevirt_csi.errors import FailedPrecondition, Internal, InvalidArgument, Unavailable
from kubevirt_csi.host.commands import Commands
from kubevirt_csi.host.filesystems import HostFilesystems
from kubevirt_csi.host.mkfs import EXT4_FEATURES, btrfs_bytes, ext4_bytes
from kubevirt_csi.ports.host import SuperBlock
from tests.host.conftest import Plugin
from tests.host.machine import MIB, PluggedDisk, run
from tests.host.test_never_format_by_accident import refuse
from tests.host.volumes import SERIAL, PodVolume

FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
SIZE = 320 * MIB

XFS_READ_ONLY_FEATURES = 1 | 4
"""finobt and reflink; not rmapbt (2), nor inobtcount (8, kernel 5.10). Kernel fs/xfs/libxfs/xfs_format.h."""
XFS_FEATURES = 1 | 2
"""ftype and sparse inodes; not bigtime (8, kernel 5.10), nrext64 (32, kernel 5.19), parent pointers, exchange-range."""
BTRFS_FEATURES = {"MIXED_BACKREF", "BIG_METADATA", "EXTENDED_IREF", "SKINNY_METADATA", "NO_HOLES"}
BTRFS_READ_ONLY_FEATURES = {"FREE_SPACE_TREE", "FREE_SPACE_TREE_VALID"}
"""Not BLOCK_GROUP_TREE (kernel 6.1)."""


async def the_disk(plugin: Plugin) -> Disk:
    (shown,) = await plugin.disks.all()
    return shown


def tool(fs_type: str, disk: PluggedDisk) -> str:
    """What the file system's own tool says about its superblock."""
    argv = {"ext4": ("dumpe2fs", "-h"), "btrfs": ("btrfs", "inspect-internal", "dump-super")}
    return run(*argv[fs_type], str(disk.path))


async def made(plugin: Plugin, fs_type: str, *, size: int = SIZE, options: str = "") -> PluggedDisk:
    """A disk that was staged with the file system, and is free again."""
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=size)
    volume = PodVolume(plugin, fs_type=fs_type, mkfs_options=options)
    await volume.stage()
    await volume.unstage()
    return disk


async def test_ext4_has_exactly_the_features_that_old_kernels_mount(plugin: Plugin) -> None:
    disk = await made(plugin, "ext4")
    (found,) = re.findall(r"^Filesystem features: +(.*)$", tool("ext4", disk), re.MULTILINE)
    assert set(found.split()) == set(EXT4_FEATURES)


async def test_xfs_has_exactly_the_features_that_old_kernels_mount(plugin: Plugin) -> None:
    disk = await made(plugin, "xfs")
    compatible, read_only, incompatible, log = struct.unpack(">IIII", disk.read(208, 16))
    assert (compatible, read_only, incompatible, log) == (0, XFS_READ_ONLY_FEATURES, XFS_FEATURES, 0)


async def test_btrfs_has_exactly_the_features_that_old_kernels_mount(plugin: Plugin) -> None:
    said = tool("btrfs", await made(plugin, "btrfs"))
    features = {
        name: set(re.findall(r"[A-Z_]{5,}", said.partition(f"{name}_flags")[2].partition(")")[0]))
        for name in ("compat_ro", "incompat")
    }
    assert features == {"compat_ro": BTRFS_READ_ONLY_FEATURES, "incompat": BTRFS_FEATURES}
    assert re.search(r"^csum_type\s+0 \(crc32c\)$", said, re.MULTILINE)
    assert re.search(r"^sectorsize\s+4096$", said, re.MULTILINE)


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_what_lies_on_a_disk_is_not_discarded(plugin: Plugin, fs_type: str) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SIZE)
    places = range(4 * MIB, SIZE, 4 * MIB)
    for place in places:
        disk.write(place + MIB, b"x" * 4096)
    await plugin.filesystems.make(await the_disk(plugin), fs_type)
    kept = [place for place in places if disk.read(place + MIB, 4096) == b"x" * 4096]
    assert len(kept) > len(places) / 2


class LosingCommands(Commands):
    """A device node goes in the moment in which a program is started."""

    def __init__(self, node: Path) -> None:
        super().__init__(search_path=os.environ["PATH"])
        self._node = node

    def _run_in_thread(self, argv, fds=()):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as in the base
        self._node.unlink()
        return super()._run_in_thread(argv, fds)


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_mkfs_makes_no_file_in_the_place_of_a_disk_that_has_left(plugin: Plugin, fs_type: str) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=SIZE)
    disk = await the_disk(plugin)
    node = Path(disk.path)
    with suppress(Internal):  # it may reach the disk all the same
        await HostFilesystems(LosingCommands(node)).make(disk, fs_type)
    with pytest.raises(Unavailable, match="cannot be opened"):
        await plugin.filesystems.make(disk, fs_type)
    assert node.name not in os.listdir(node.parent)  # noqa: PTH208 - a folder of a test answers at once


async def test_the_inode_tables_of_an_ext4_are_left_to_the_kernel(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=2048 * MIB)
    await plugin.filesystems.make(await the_disk(plugin), "ext4", options=("-i", "4096", "-J", "size=4"))
    tables = 2048 * MIB // 4096 * 256  # an inode of 256 bytes for 4 KiB each
    assert disk.image.stat().st_blocks * 512 < tables // 8


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_the_smallest_disk_is_enough_and_less_is_refused_with_the_minimum(plugin: Plugin, fs_type: str) -> None:
    smallest = SMALLEST_BYTES[fs_type]
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=smallest - 4096)
    await refuse(PodVolume(plugin, fs_type=fs_type), disk, match=f"needs at least {smallest} bytes")
    plugin.machine.unplug(disk)
    disk = await made(plugin, fs_type, size=smallest)
    if fs_type == "ext4":
        assert "has_journal" in tool("ext4", disk)


@pytest.mark.parametrize(
    ("fs_type", "options", "shown"),
    [
        ("ext4", "-i 1048576 -m 5 -I 512", r"Inode size:\s+512"),
        ("ext4", "-m 5", r"Reserved block count:\s+4096\b"),
        ("ext4", "-N 4096", r"Inode count:\s+41\d\d\b"),
        ("ext4", "-J size=8", r"Total journal size:\s+8M"),
        ("btrfs", "-n 32768 -m single", r"nodesize\s+32768"),
    ],
)
async def test_the_class_options_reach_mkfs(plugin: Plugin, fs_type: str, options: str, shown: str) -> None:
    assert re.search(shown, tool(fs_type, await made(plugin, fs_type, options=options)))


async def test_the_class_options_reach_mkfs_of_xfs(plugin: Plugin) -> None:
    disk = await made(plugin, "xfs", options="-i size=1024,maxpct=7 -d agcount=2 -n size=8192")
    (groups,) = struct.unpack(">I", disk.read(88, 4))
    (inode,) = struct.unpack(">H", disk.read(104, 2))
    assert (groups, inode, disk.read(127, 1)[0]) == (2, 1024, 7)


async def test_an_option_that_is_not_allowed_stops_mkfs_and_not_a_mount(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=SIZE)
    await refuse(PodVolume(plugin, mkfs_options="-O orphan_file"), disk, match="not allowed", error=InvalidArgument)
    await PodVolume(plugin).stage()
    await PodVolume(plugin).unstage()
    await PodVolume(plugin, mkfs_options="-O orphan_file").stage()


async def test_what_mkfs_says_against_an_option_is_told_and_the_next_attempt_may_format(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL, size=SIZE)
    with pytest.raises(Internal, match=r"making ext4 on disk .* failed: .*journal"):
        await PodVolume(plugin, mkfs_options="-J size=10240").stage()
    await PodVolume(plugin, mkfs_options="-J size=4").stage()


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_the_superblock_tells_type_and_size(plugin: Plugin, fs_type: str) -> None:
    size = 641 * MIB + 512
    plugin.machine.plug("vdb", serial=SERIAL, size=size)
    await plugin.filesystems.make(await the_disk(plugin), fs_type)
    whole = {"ext4": ext4_bytes(size), "xfs": size // 4096 * 4096, "btrfs": btrfs_bytes(size)}
    found = await plugin.filesystems.superblock(await the_disk(plugin), fs_type)
    assert found == SuperBlock(fs_type=fs_type, size_bytes=whole[fs_type])


async def test_a_disk_without_a_superblock_has_none_to_tell_of(plugin: Plugin) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    with pytest.raises(FailedPrecondition, match="no superblock of ext4; found: none"):
        await plugin.filesystems.superblock(await the_disk(plugin), "ext4")


async def test_what_looks_like_another_superblock_does_not_hide_the_one_that_is_asked_for(plugin: Plugin) -> None:
    disk = await made(plugin, "xfs")
    disk.write(64 * 1024 + 0x40, b"_BHRfS_M")
    found = await plugin.filesystems.superblock(await the_disk(plugin), "xfs")
    assert found == SuperBlock(fs_type="xfs", size_bytes=SIZE)


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
async def test_a_file_system_that_claims_more_than_its_disk_has_is_not_mounted(plugin: Plugin, fs_type: str) -> None:
    disk = await made(plugin, fs_type)
    claimed = (await plugin.filesystems.superblock(await the_disk(plugin), fs_type)).size_bytes
    cut = claimed - 4096
    plugin.commands.ran.clear()
    plugin.machine.grow(disk, cut)
    await refuse(
        PodVolume(plugin), disk, match=f"the {fs_type} on disk .* claims {claimed} bytes, but the disk has {cut}"
    )
    plugin.machine.grow(disk, SIZE)
    await PodVolume(plugin).stage()
