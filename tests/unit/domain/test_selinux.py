"""SELinux contexts: as kubelet asks for them, as the kernel shows them, and which of these are the same."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.mountinfo import MountTable
from kubevirt_csi.domain.selinux import contexts, differing, same

ASKED = 'context="system_u:object_r:container_file_t:s0:c1,c2"'
LINE = (
    "90 28 253:16 / /staging rw,relatime shared:7 - ext4 /dev/vdb "
    'rw,context="system_u:object_r:container_file_t:s0:c1,c2",discard\n'
)


def shown(line: str) -> frozenset[str]:
    return MountTable.parse(line).entries[0].super_options


def test_the_context_that_kubelet_asks_for_is_found_in_the_mount_table() -> None:
    assert differing((ASKED, "noatime"), present=shown(LINE)) == {}


def test_a_context_that_mount_left_out_is_missed() -> None:
    bare = LINE.replace(',context="system_u:object_r:container_file_t:s0:c1,c2"', ",seclabel")
    assert differing((ASKED,), present=shown(bare)) == {"context=system_u:object_r:container_file_t:s0:c1,c2": ""}


def test_two_contexts_of_one_volume_are_both_told() -> None:
    other = ASKED.replace("c1,c2", "c3,c4")
    assert differing((other,), present=shown(LINE)) == {
        "context=system_u:object_r:container_file_t:s0:c3,c4": "system_u:object_r:container_file_t:s0:c1,c2"
    }


def test_a_volume_that_is_mounted_with_a_context_nobody_asks_for_is_fine() -> None:
    assert differing(("noatime",), present=shown(LINE)) == {}


def test_only_context_options_are_contexts() -> None:
    assert contexts(["discard", "rootcontext=a:b:c", "commit=30"]) == {"rootcontext": "a:b:c"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("u:r:t:s0:c2,c1", "u:r:t:s0:c1,c2", id="order"),
        pytest.param("u:r:t:s0:c1,c2,c3", "u:r:t:s0:c1.c3", id="range"),
        pytest.param("u:r:t:s0:c5-s0:c5", "u:r:t:s0:c5", id="a range of one level"),
        pytest.param("u:r:t:s0", "u:r:t:s0", id="no categories"),
        pytest.param("u:r:t", "u:r:t", id="no level"),
    ],
)
def test_a_context_may_be_spelt_in_several_ways(one: str, other: str) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("u:r:t:s0:c1,c2", "u:r:t:s0:c1", id="fewer categories"),
        pytest.param("u:r:t:s0", "u:r:t:s1", id="sensitivity"),
        pytest.param("u:r:t:s0", "u:r:t", id="no level"),
        pytest.param("u:r:t:s0:c1", "u:r:x:s0:c1", id="type"),
        pytest.param("u:r:t:s0-s0:c1", "u:r:t:s0:c1", id="low level"),
        pytest.param("u:r:t:s0:c0.c99999999", "u:r:t:s0:c0.c99999998", id="a range beyond reason"),
    ],
)
def test_contexts_that_differ_are_different(one: str, other: str) -> None:
    assert not same(one, other)
