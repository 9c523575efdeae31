"""Which mkfs options a StorageClass may give, and the sizes below which a file system cannot be made."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain import mkfs
from kubevirt_csi.domain.access import FILE_SYSTEMS, AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.mkfs import SMALLEST_BYTES, arguments, require_makeable
from kubevirt_csi.errors import InvalidArgument, OutOfRange

MODE = AccessMode.SINGLE_NODE_WRITER


def mount(fs_type: str) -> Capability:
    return Capability(access=Mount(fs_type=fs_type), mode=MODE)


@pytest.mark.parametrize(
    ("fs_type", "text"),
    [
        ("ext4", ""),
        ("ext4", "-i 8192"),
        ("ext4", "-m 5 -I 512 -N 100000 -J size=64"),
        ("xfs", "-i size=1024,maxpct=25 -d agcount=8 -n size=16384"),
        ("btrfs", "-n 32768 -m single -d single"),
    ],
)
def test_what_is_listed_passes_word_by_word(fs_type: str, text: str) -> None:
    assert arguments(text, fs_type) == tuple(text.split())


@pytest.mark.parametrize(
    ("fs_type", "text"),
    [
        pytest.param("ext4", "-O orphan_file", id="a feature"),
        pytest.param("ext4", "-b 65536", id="a block size that x86 cannot mount"),
        pytest.param("ext4", "-E discard", id="what would replace the fixed extended options"),
        pytest.param("ext4", "-d /etc", id="files of the node put into the volume"),
        pytest.param("ext4", "-i 8192 /dev/vda", id="another device"),
        pytest.param("ext4", "/dev/vda -i", id="another device as option"),
        pytest.param("ext4", "-J device=/dev/vda", id="a journal elsewhere"),
        pytest.param("ext4", "-J size=64,device=/dev/vda", id="a journal elsewhere too"),
        pytest.param("ext4", "-i", id="no value"),
        pytest.param("ext4", "-i8192", id="value in the same word"),
        pytest.param("ext4", "-i 1023", id="below the range"),
        pytest.param("ext4", "-i 67108865", id="above the range"),
        pytest.param("ext4", "-m -1", id="negative"),
        pytest.param("ext4", "-i ٤٠٩٦", id="digits of another script"),
        pytest.param("ext4", "-i 1" + "0" * 5000, id="a number of thousands of digits"),
        pytest.param("ext4", "-m 1 -m 2", id="twice"),
        pytest.param("xfs", "-m bigtime=1", id="a feature of xfs"),
        pytest.param("xfs", "-d name=/dev/vda", id="another device for xfs"),
        pytest.param("xfs", "-l logdev=/dev/vda", id="a log elsewhere"),
        pytest.param("xfs", "-i size=1024,nrext64=1", id="a feature beside what is listed"),
        pytest.param("xfs", "-i 1024", id="no key"),
        pytest.param("xfs", "-p /etc/passwd", id="a prototype file"),
        pytest.param("btrfs", "-O block-group-tree", id="a feature of btrfs"),
        pytest.param("btrfs", "--rootdir /etc", id="files of the node put into a btrfs"),
        pytest.param("btrfs", "-m raid1", id="a profile of several devices"),
        pytest.param("btrfs", "-i 8192", id="an option of another type"),
    ],
)
def test_everything_else_is_refused_with_what_there_is(fs_type: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"mkfsOptions.*(for {fs_type} there are: -|longer than)"):
        arguments(text, fs_type)


def test_every_type_has_options_and_a_minimum() -> None:
    assert set(SMALLEST_BYTES) == set(mkfs._ALLOWED) == set(FILE_SYSTEMS)


@pytest.mark.parametrize("fs_type", FILE_SYSTEMS)
def test_a_volume_below_the_minimum_is_out_of_range_and_the_minimum_is_told(fs_type: str) -> None:
    smallest = SMALLEST_BYTES[fs_type]
    require_makeable("", [mount(fs_type)], size_bytes=smallest)
    with pytest.raises(OutOfRange, match=rf"too small for {fs_type}, .* {smallest} bytes \({smallest // mkfs.MIB}Mi\)"):
        require_makeable("", [mount(fs_type)], size_bytes=smallest - 1)


def test_no_type_means_ext4() -> None:
    require_makeable("-i 8192", [mount("")], size_bytes=SMALLEST_BYTES["ext4"])


def test_all_types_that_are_asked_for_have_to_take_the_options() -> None:
    with pytest.raises(InvalidArgument, match="for xfs"):
        require_makeable("-m 5", [mount("ext4"), mount("xfs")], size_bytes=2**30)


def test_a_raw_volume_is_never_formatted_so_nothing_is_asked_of_it() -> None:
    require_makeable("-O orphan_file", [Capability(access=Block(), mode=MODE)], size_bytes=1)
