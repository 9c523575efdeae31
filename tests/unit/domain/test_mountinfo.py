"""The mount table, in lines as kernels write them."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.mountinfo import MountTable, paths

TEXT = """\
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
90 28 253:16 / /var/lib/kubelet/staging rw,noatime shared:7 master:2 - xfs /dev/vdb rw,nouuid
91 28 253:16 /sub /var/lib/kubelet/pods/with\\040space ro,noatime - xfs /dev/vdb rw,nouuid
92 28 0:6 /vdc /var/lib/kubelet/raw rw shared:3 - devtmpfs udev rw
93 28 253:32 / /broken rw - ext4 /dev/vdc ro,errors=remount-ro
94 90 253:48 / /var/lib/kubelet/staging rw - ext4 /dev/vdd rw
"""


@pytest.fixture
def table() -> MountTable:
    return MountTable.parse(TEXT)


def test_every_field_is_read_whatever_the_number_of_tags(table: MountTable) -> None:
    entry = table.entries[1]
    assert (entry.mount_id, entry.device, entry.root) == (90, DeviceNumber(253, 16), "/")
    assert (entry.mount_point, entry.fs_type, entry.source) == ("/var/lib/kubelet/staging", "xfs", "/dev/vdb")
    assert entry.options == frozenset({"rw", "noatime"})
    assert entry.super_options == frozenset({"rw", "nouuid"})


def test_escaped_characters_are_restored(table: MountTable) -> None:
    assert table.top("/var/lib/kubelet/pods/with space") is not None


def test_the_topmost_of_stacked_mounts_is_what_is_seen(table: MountTable) -> None:
    top = table.top("/var/lib/kubelet/staging")
    assert top is not None
    assert top.source == "/dev/vdd"
    assert len(table.at("/var/lib/kubelet/staging")) == 2


def test_a_folder_below_a_mount_point_is_no_mount_point(table: MountTable) -> None:
    assert table.top("/var/lib/kubelet") is None


def test_all_mounts_of_a_device_are_found_by_its_number(table: MountTable) -> None:
    assert paths(table.of(DeviceNumber(253, 16))) == "/var/lib/kubelet/pods/with space, /var/lib/kubelet/staging"


def test_a_mount_is_read_only_for_its_own_sake_or_its_file_systems(table: MountTable) -> None:
    assert [entry.read_only for entry in table.entries] == [False, False, True, False, True, False]


def test_a_line_of_another_format_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        MountTable.parse("/dev/sda1 / ext4 rw 0 0\n")


def test_a_value_with_commas_is_one_option_and_loses_its_quotes() -> None:
    line = '90 28 8:1 / /a rw,noatime - ext4 /dev/sda1 rw,context="u:r:t:s0:c1,c2",discard\n'
    (entry,) = MountTable.parse(line).entries
    assert entry.super_options == {"rw", "context=u:r:t:s0:c1,c2", "discard"}


@pytest.mark.parametrize("name", ["a\u2028b", "a\x0cb", "a\x85b", "\udcff"])
def test_a_folder_name_that_looks_like_the_end_of_a_line_is_a_folder_name(name: str) -> None:
    (entry,) = MountTable.parse(f"90 28 8:1 /{name} /a rw - ext4 /dev/sda1 rw\n").entries
    assert entry.root == f"/{name}"


def test_the_node_of_a_device_that_has_left_keeps_its_name() -> None:
    gone, here = MountTable.parse(
        "90 28 0:6 /vdb//deleted /raw rw - devtmpfs udev rw\n91 28 0:6 /vdb /raw rw - devtmpfs udev rw\n"
    ).entries
    assert [(entry.name, entry.is_deleted) for entry in (gone, here)] == [("vdb", True), ("vdb", False)]


def test_mount_points_that_are_no_text_are_told_in_ascii() -> None:
    table = MountTable.parse("90 28 8:1 / /\udcff rw - ext4 /dev/sda1 rw\n")
    assert paths(table.entries) == "/\\udcff"
