"""Which mount options a StorageClass may hand to a mount, which of them belong to one mount and which to all of them.

Options come from whoever may write a StorageClass or a PersistentVolume. Refused is what makes mount(8) do something
else than mount this disk here, what brings in another disk or shows another part of this one, and what endangers the
data or the node. Everything else goes to the kernel, which knows its file systems better than a list could.

The surprising fact: ``noatime`` or ``nosuid`` are flags of one mount, and a bind inherits them from its source;
``discard`` or ``context`` are the file system's, set by its first mount and shared by all. Source: mount(8), mount(2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from kubevirt_csi.domain import selinux
from kubevirt_csi.errors import InvalidArgument

LARGEST_BYTES = 4096
"""CSI spec: size limit of mount_flags."""

_OTHER_WORK = ("bind", "rbind", "move", "remount", "loop", "offset", "sizelimit", "helper", "uhelper", "fd")
_PROPAGATION = ("shared", "rshared", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable")
_FOR_USERS = ("user", "users", "owner", "group", "nouser")
_OTHER_PLACE = ("journal_dev", "journal_path", "logdev", "rtdev", "device", "sb", "subvol", "subvolid")
_DANGEROUS = ("abort", "test_dummy_encryption", "errors=panic")
REFUSED = MappingProxyType(
    dict.fromkeys((*_OTHER_WORK, *_PROPAGATION), "it makes mount do something else than mount the volume's disk")
    | dict.fromkeys(_FOR_USERS, "it is for entries of /etc/fstab")
    | dict.fromkeys(_OTHER_PLACE, "it brings in another disk, or another part of this one than was checked")
    | dict.fromkeys(_DANGEROUS, "it endangers the volume or the whole node")
)
"""Options by name, or by name and value, each with the reason."""
_REFUSED_PREFIXES = ("x-", "X-", "verity.")
_WITHOUT_JOURNAL = frozenset(("noload", "norecovery", "nologreplay"))
_LEAVE_OUT_JOURNAL = MappingProxyType({"ext4": ("noload",), "xfs": ("norecovery",)})

_RESETS = MappingProxyType(
    {
        "rw": ("ro",),
        "suid": ("nosuid",),
        "dev": ("nodev",),
        "exec": ("noexec",),
        "atime": ("noatime",),
        "relatime": ("noatime",),
        "strictatime": ("noatime",),
        "diratime": ("nodiratime",),
        "symfollow": ("nosymfollow",),
        "defaults": ("ro", "nosuid", "nodev", "noexec"),
    }
)
"""What each of these takes back of the options before it."""
PER_MOUNT = frozenset(("ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "nosymfollow"))
"""The flags of a single mount that restrict it; the kernel always shows them in mountinfo."""

_OPTION = re.compile(r"[A-Za-z0-9_.-]+(=[^\s,\"\\]*)?")
# kubelet's SELinux option keeps its commas between quotes: context="system_u:object_r:container_file_t:s0:c1,c2".
_SELINUX = re.compile(rf"({'|'.join(selinux.KEYS)})=\"[^\s\"\\]*\"")


def checked(flags: Sequence[str]) -> tuple[str, ...]:
    """The single options, with ``a,b`` in one flag split, in their order.

    Raises:
        InvalidArgument: an option is empty, malformed or refused, or all together are too long. The text names its key
            only: values may be sensitive (CSI spec: mount_flags).
    """
    if sum(len(flag.encode()) for flag in flags) > LARGEST_BYTES:
        raise InvalidArgument(f"mount_flags have more than {LARGEST_BYTES} bytes")
    options = _without_repeated_contexts([option for flag in flags for option in _split(flag)])
    for option in options:
        _check(option)
    _check_together(options)
    return options


def for_file_system(options: Sequence[str], *, fs_type: str, write_protected: bool = False) -> tuple[str, ...]:
    """The options for mounting a file system of the type that was found on the device.

    A clone of an xfs volume has its source's UUID, and without ``nouuid`` the two cannot be mounted on one node. An
    ext4 would let its pod write on after it has found itself damaged. On a disk that is write-protected no journal can
    be replayed, so it has to be left out.
    """
    added = ["nouuid"] if fs_type == "xfs" else []
    if fs_type == "ext4" and not any(option.startswith("errors=") for option in options):
        added.append("errors=remount-ro")
    if write_protected:
        added += ["ro", *_LEAVE_OUT_JOURNAL.get(fs_type, ())]
    return (*options, *(option for option in added if option not in options))


def per_mount(options: Iterable[str]) -> frozenset[str]:
    """The restrictions of a single mount that the options end up with: of ``noexec,exec`` the last one counts."""
    flags: set[str] = set()
    for option in options:
        flags.difference_update(_RESETS.get(option, ()))
        if option in PER_MOUNT:
            flags.add(option)
    return frozenset(flags)


def missing(wanted: Iterable[str], *, present: frozenset[str]) -> tuple[str, ...]:
    """Those of the wanted restrictions of a single mount that are not among the mount's own options."""
    return tuple(sorted(per_mount(wanted) - present))


def _split(flag: str) -> list[str]:
    return [flag] if _SELINUX.fullmatch(flag) else flag.split(",")


def _without_repeated_contexts(options: Sequence[str]) -> tuple[str, ...]:
    """The kernel takes a context once only, and the class may ask for the one that kubelet asks for too."""
    return tuple(
        option
        for place, option in enumerate(options)
        if not selinux.contexts([option]) or option not in options[:place]
    )


def _check(option: str) -> None:
    key = option.partition("=")[0]
    if not _OPTION.fullmatch(option) and not _SELINUX.fullmatch(option):
        raise InvalidArgument("a mount option is empty or has white space, quotes or control characters")
    reason = REFUSED.get(key) or REFUSED.get(option)
    if key.startswith(_REFUSED_PREFIXES):
        reason = "it is mount's own and not the file system's"
    if reason is not None:
        raise InvalidArgument(f"mount option {key!r} is not allowed for a volume: {reason}")


def _check_together(options: Sequence[str]) -> None:
    unsafe = sorted(_WITHOUT_JOURNAL.intersection(options))
    if unsafe and "ro" not in per_mount(options):
        raise InvalidArgument(
            f"mount option {unsafe[0]!r} leaves out what the journal holds, and is allowed together with 'ro' only"
        )
    for key in selinux.KEYS:
        if len({option for option in options if option.startswith(f"{key}=")}) > 1:
            raise InvalidArgument(f"mount option {key!r} is given twice with different values")
