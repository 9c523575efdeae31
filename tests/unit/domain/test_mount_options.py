"""Mount options of a class: split, checked, completed, compared."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.mount_options import checked, for_file_system, missing
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
    ],
)
def test_what_would_make_mount_do_something_else_is_refused(flag: str) -> None:
    with pytest.raises(InvalidArgument):
        checked([flag])


def test_the_value_of_a_refused_option_is_not_told() -> None:
    with pytest.raises(InvalidArgument) as refused:
        checked(["helper=sensitive"])
    assert "sensitive" not in str(refused.value)


@pytest.mark.parametrize(
    ("fs_type", "options", "expected"),
    [
        pytest.param("xfs", ("noatime",), ("noatime", "nouuid"), id="xfs"),
        pytest.param("xfs", ("nouuid",), ("nouuid",), id="xfs that has it"),
        pytest.param("ext4", ("noatime",), ("noatime",), id="ext4"),
    ],
)
def test_nouuid_is_for_xfs_only(fs_type: str, options: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert for_file_system(options, fs_type=fs_type) == expected


def test_only_options_that_the_kernel_always_shows_are_missed() -> None:
    assert missing(("noexec", "discard", "ro"), present=frozenset({"rw", "noatime"})) == ("noexec", "ro")


def test_options_of_more_than_4_kib_together_are_refused_and_not_told() -> None:
    assert len(checked(["a" * 2047] * 2)) == 2
    with pytest.raises(InvalidArgument, match=r"^mount_flags have more than 4096 bytes$"):
        checked(["a" * 2049] * 2)
