"""Which mount options a StorageClass may hand to a mount, and what the driver adds to them.

Options that make mount(8) do something else than mount this device here (bind, move, change propagation, run a helper,
set up a loop device) are refused: they come from whoever may write a PersistentVolume.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kubevirt_csi.errors import InvalidArgument

_OTHER_WORK = ("bind", "rbind", "move", "remount", "loop", "offset", "sizelimit", "helper", "uhelper", "fd")
_PROPAGATION = ("shared", "rshared", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable")
LARGEST_BYTES = 4096
"""CSI spec: size limit of mount_flags."""
REFUSED = frozenset((*_OTHER_WORK, *_PROPAGATION))
_REFUSED_PREFIXES = ("x-", "X-", "verity.")
_PER_MOUNT = frozenset(("ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime"))
_OPTION = re.compile(r"[A-Za-z0-9_.-]+(=[^\s,\"\\]*)?")
# kubelet's SELinux option keeps its commas between quotes: context="system_u:object_r:container_file_t:s0:c1,c2".
_SELINUX = re.compile(r"(fs|def|root)?context=\"[^\s\"\\]*\"")


def checked(flags: Sequence[str]) -> tuple[str, ...]:
    """The single options, with ``a,b`` in one flag split, in their order.

    Raises:
        InvalidArgument: an option is empty or malformed, or would make mount(8) do something else, or all together are
            too long. The text names its key only: values may be sensitive (CSI spec: mount_flags).
    """
    if sum(len(flag.encode()) for flag in flags) > LARGEST_BYTES:
        raise InvalidArgument(f"mount_flags have more than {LARGEST_BYTES} bytes")
    options = tuple(option for flag in flags for option in _split(flag))
    for option in options:
        key = option.partition("=")[0]
        if not _OPTION.fullmatch(option) and not _SELINUX.fullmatch(option):
            raise InvalidArgument("a mount option is empty or has white space, quotes or control characters")
        if key in REFUSED or key.startswith(_REFUSED_PREFIXES):
            raise InvalidArgument(f"mount option {key!r} is not allowed for a volume")
    return options


def for_file_system(options: Sequence[str], *, fs_type: str) -> tuple[str, ...]:
    """The options for mounting a file system of the type that was found on the device.

    A clone of an xfs volume has its source's UUID, and without ``nouuid`` the two cannot be mounted on one node.
    """
    if fs_type == "xfs" and "nouuid" not in options:
        return (*options, "nouuid")
    return tuple(options)


def missing(wanted: Sequence[str], *, present: frozenset[str]) -> tuple[str, ...]:
    """Those of the wanted options that a mount visibly lacks; only those that the kernel always shows are compared."""
    return tuple(option for option in wanted if option in _PER_MOUNT and option not in present)


def _split(flag: str) -> list[str]:
    return [flag] if _SELINUX.fullmatch(flag) else flag.split(",")
