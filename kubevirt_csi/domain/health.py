"""What can be wrong with a volume on this node, in the words of the CSI specification.

A volume without ailments is healthy. Kubelets built on CSI before 1.13 read one bit and one text instead
(VolumeCondition); both are made from the same ailments, so they never contradict each other. ``reason`` is for
machines: the same trouble always has the same one, whatever its message says.
Source: CSI spec 1.13, VolumeHealth; CSI spec 1.12, VolumeCondition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from kubevirt_csi.domain.mountinfo import MountEntry, MountTable


class Severity(Enum):
    """CSI spec: VolumeHealthErrorType."""

    DEGRADED = "DEGRADED"
    """Usable, though not as it should be."""
    INACCESSIBLE = "INACCESSIBLE"
    """Not accessible from this node."""
    DATA_LOSS = "DATA_LOSS"
    """Loss is known or strongly suspected; somebody may restore a backup because we say so."""


class Reason(Enum):
    """What is wrong, as CamelCase that does not change: alerts are written for it."""

    NOT_RESPONDING = "NotResponding"
    DEVICE_GONE = "DeviceGone"
    DEVICE_OFFLINE = "DeviceOffline"
    IO_ERROR = "IoError"
    FILE_SYSTEM_SHUT_DOWN = "FileSystemShutDown"
    FILE_SYSTEM_READ_ONLY = "FileSystemReadOnly"
    FILE_SYSTEM_ERRORS = "FileSystemErrors"
    STAGING_FAILED = "StagingFailed"
    GROWTH_FAILED = "GrowthFailed"


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that is wrong with a volume.

    ``message`` is for people, without a full stop at its end. What was found comes first and what to do about it after
    that: fields of a CSI message are short, and only the log has all of it.
    """

    severity: Severity
    reason: Reason
    message: str


def of_mount(mounted: MountEntry, table: MountTable) -> tuple[Ailment, ...]:
    """What the mount table alone tells about the file system of a mount.

    A file system that the kernel has made read-only still has mounts that were made read-write; one that is read-only
    because somebody wants it so has none. Since Linux 6.12 ext4 no longer shows "ro" after an error, and only since
    6.15 "emergency_ro" instead, and "shutdown" when it has given up altogether (fs/ext4/super.c); between these two
    its error count alone tells.
    """
    shown = mounted.super_options
    if "shutdown" in shown:
        return (
            Ailment(
                Severity.INACCESSIBLE,
                Reason.FILE_SYSTEM_SHUT_DOWN,
                f"the kernel has shut its {mounted.fs_type} down: nothing can be read or written. Look at this node's "
                "kernel log; it has to be unmounted (end all pods that use it) and mounted again",
            ),
        )
    made_writable = any("rw" in entry.options for entry in _of_same_file_system(mounted, table))
    if "emergency_ro" in shown or ("ro" in shown and made_writable):
        return (
            Ailment(
                Severity.DEGRADED,
                Reason.FILE_SYSTEM_READ_ONLY,
                f"its {mounted.fs_type} was mounted read-write and has become read-only: the kernel does that after an "
                "error. Look at this node's kernel log; it has to be unmounted (end all pods that use it), and is "
                "checked when it is mounted again",
            ),
        )
    return ()


def worst_first(ailments: Iterable[Ailment]) -> tuple[Ailment, ...]:
    """One ailment for each pair of severity and reason, as the specification wants it, the gravest first."""
    gravest = tuple(Severity)
    distinct = {(ailment.severity, ailment.reason): ailment for ailment in ailments}
    return tuple(
        sorted(distinct.values(), key=lambda each: (-gravest.index(each.severity), each.reason.value, each.message))
    )


def _of_same_file_system(mounted: MountEntry, table: MountTable) -> tuple[MountEntry, ...]:
    return tuple(entry for entry in table.of(mounted.device) if entry.fs_type == mounted.fs_type)
