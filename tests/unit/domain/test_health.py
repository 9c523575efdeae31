"""What the mount table tells about a file system's health, and how ailments are put together."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.health import Ailment, Reason, Severity, of_mount, worst_first
from kubevirt_csi.domain.mountinfo import MountTable

STAGED = "41 30 253:16 / /staging {options} - ext4 /dev/vdb {shown}\n"
TARGET = "42 30 253:16 / /pod {options} - ext4 /dev/vdb {shown}\n"
OTHER = "43 30 253:32 / /other rw,relatime - ext4 /dev/vdc rw\n"


def reasons(*, staged: str, target: str, shown: str) -> list[Reason]:
    text = STAGED.format(options=staged, shown=shown) + TARGET.format(options=target, shown=shown) + OTHER
    table = MountTable.parse(text)
    mounted = table.top("/pod")
    assert mounted is not None
    return [ailment.reason for ailment in of_mount(mounted, table)]


@pytest.mark.parametrize("target", ["rw,relatime", "ro,relatime"])
def test_a_writable_file_system_is_well_however_a_pod_sees_it(target: str) -> None:
    assert reasons(staged="rw,relatime", target=target, shown="rw") == []


@pytest.mark.parametrize("target", ["rw,relatime", "ro,relatime"])
def test_a_file_system_that_became_read_only_below_a_writable_mount_is_not_well(target: str) -> None:
    assert reasons(staged="rw,relatime", target=target, shown="ro") == [Reason.FILE_SYSTEM_READ_ONLY]


def test_a_file_system_that_was_mounted_read_only_is_well() -> None:
    assert reasons(staged="ro,relatime", target="ro,relatime", shown="ro") == []


def test_newer_kernels_say_after_an_error_that_ext4_is_read_only_without_the_flag() -> None:
    assert reasons(staged="rw", target="ro", shown="rw,emergency_ro") == [Reason.FILE_SYSTEM_READ_ONLY]


def test_a_file_system_that_the_kernel_gave_up_is_inaccessible() -> None:
    assert reasons(staged="rw", target="rw", shown="rw,emergency_ro,shutdown") == [Reason.FILE_SYSTEM_SHUT_DOWN]


def test_the_gravest_ailment_comes_first_and_none_twice() -> None:
    degraded = Ailment(Severity.DEGRADED, Reason.FILE_SYSTEM_ERRORS, "one")
    gone = Ailment(Severity.INACCESSIBLE, Reason.DEVICE_GONE, "two")
    lost = Ailment(Severity.DATA_LOSS, Reason.FILE_SYSTEM_ERRORS, "three")
    assert worst_first([degraded, gone, degraded, lost]) == (lost, gone, degraded)
