"""Mount options of a class: split, checked, completed, compared."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.mount_options import checked, for_file_system, missing, per_mount
from kubevirt_csi.errors import InvalidArgument

SELINUX = 'context="system_u:object_r:container_file_t:s0:c1,c2"'


def test_options_are_split_and_keep_their_order() -> None:
    assert checked(["noatime,discard", "commit=30"]) == ("noatime", "discard", "commit=30")


def test_the_commas_of_a_selinux_context_do_not_split_it() -> None:
    assert checked([SELINUX, "noatime"]) == (SELINUX, "noatime")


@pytest.mark.parametrize(
    "flag",
    [
        "bind",
        "remount,ro",
        "loop=/dev/loop0",
        "move",
        "rshared",
        "helper=evil",
        "x-systemd.automount",
        "X-mount.mkdir",
        "",
        "noatime,",
        "a b",
        'x="1,bind',
        f"{SELINUX},bind",
        "noatime\nbind",
        "user",
        "journal_dev=0x8001",
        "logdev=/dev/vdc",
        "device=/dev/vdc",
        "subvolid=257",
        "sb=32768",
        "errors=panic",
        "abort",
    ],
)
def test_what_would_make_mount_do_something_else_is_refused(flag: str) -> None:
    with pytest.raises(InvalidArgument):
        checked([flag])


@pytest.mark.parametrize(
    "flags",
    [
        ["discard", "commit=30", "errors=remount-ro", "data=ordered", "lazytime"],
        ["noatime", "nodev", "nosuid", "noexec", "nofail", "_netdev", "defaults"],
        ["logbufs=8", "logbsize=256k", "inode64", "largeio", "swalloc", "compress=zstd:3"],
        ["ro", "norecovery"],
        ['fscontext="system_u:object_r:fs_t:s0:c1,c2"', "rootcontext=system_u:object_r:container_file_t:s0"],
    ],
)
def test_what_file_systems_and_mounts_understand_goes_to_the_kernel(flags: list[str]) -> None:
    assert checked(flags) == tuple(flags)


@pytest.mark.parametrize("option", ["noload", "norecovery", "nologreplay"])
def test_a_journal_is_left_out_only_by_who_cannot_write(option: str) -> None:
    with pytest.raises(InvalidArgument, match="together with 'ro' only"):
        checked([option])
    with pytest.raises(InvalidArgument, match="together with 'ro' only"):
        checked(["ro", option, "rw"])


def test_two_contexts_in_one_request_are_refused_and_one_given_twice_counts_once() -> None:
    assert checked([SELINUX, "noexec,exec,noexec", SELINUX]) == (SELINUX, "noexec", "exec", "noexec")
    with pytest.raises(InvalidArgument, match="'context' is given twice"):
        checked([SELINUX, SELINUX.replace("c1,c2", "c3")])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(("noexec", "discard", "noatime"), {"noexec", "noatime"}, id="of a file system"),
        pytest.param(("noexec", "exec"), set(), id="taken back"),
        pytest.param(("exec", "noexec"), {"noexec"}, id="the last one counts"),
        pytest.param(("ro", "nosuid", "defaults"), set(), id="defaults take back"),
        pytest.param(("noatime", "relatime"), set(), id="another atime"),
    ],
)
def test_the_restrictions_of_a_single_mount_are_told_from_those_of_its_file_system(
    options: tuple[str, ...], expected: set[str]
) -> None:
    assert per_mount(options) == expected


def test_the_value_of_a_refused_option_is_not_told() -> None:
    with pytest.raises(InvalidArgument) as refused:
        checked(["helper=sensitive"])
    assert "sensitive" not in str(refused.value)


@pytest.mark.parametrize(
    ("fs_type", "options", "expected"),
    [
        pytest.param("xfs", ("noatime",), ("noatime", "nouuid"), id="xfs"),
        pytest.param("xfs", ("nouuid",), ("nouuid",), id="xfs that has it"),
        pytest.param("ext4", ("noatime",), ("noatime", "errors=remount-ro"), id="ext4"),
        pytest.param("ext4", ("errors=continue",), ("errors=continue",), id="ext4 whose class decides"),
        pytest.param("btrfs", ("noatime",), ("noatime",), id="btrfs"),
    ],
)
def test_a_file_system_gets_what_it_needs_and_no_other_does(
    fs_type: str, options: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert for_file_system(options, fs_type=fs_type) == expected


@pytest.mark.parametrize(
    ("fs_type", "options", "expected"),
    [
        pytest.param("ext4", ("noatime",), ("noatime", "errors=remount-ro", "ro", "noload"), id="ext4"),
        pytest.param("xfs", ("ro",), ("ro", "nouuid", "norecovery"), id="xfs"),
        pytest.param("btrfs", (), ("ro",), id="btrfs"),
    ],
)
def test_the_journal_is_left_out_on_a_write_protected_disk(
    fs_type: str, options: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert for_file_system(options, fs_type=fs_type, write_protected=True) == expected


def test_only_options_that_the_kernel_always_shows_are_missed() -> None:
    assert missing(("noexec", "discard", "ro"), present=frozenset({"rw", "noatime"})) == ("noexec", "ro")


def test_options_of_more_than_4_kib_together_are_refused_and_not_told() -> None:
    assert len(checked(["a" * 2047] * 2)) == 2
    with pytest.raises(InvalidArgument, match=r"^mount_flags have more than 4096 bytes$"):
        checked(["a" * 2049] * 2)
