"""What may be said about making a file system: the options that a StorageClass may give mkfs, and the smallest sizes.

The parameter is text of a tenant's choosing that ends up as arguments of a program that runs as root, so an option
passes only when it is listed here, with a value from its range. Left out on purpose is everything that changes which
kernels can mount the result, and everything that could put metadata where the mark of a started format lies.
Both halves of the driver ask here: the controller before it makes a volume, the node again before it calls mkfs,
because what reaches it through the PersistentVolume may have been written by somebody else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubevirt_csi.domain.access import Capability, Mount
from kubevirt_csi.domain.names import shown
from kubevirt_csi.domain.volumes import MKFS_OPTIONS
from kubevirt_csi.errors import InvalidArgument, OutOfRange

MIB = 1024**2
LONGEST_TEXT = 256
"""volume_context has 4 KiB for everything."""

SMALLEST_BYTES = {"ext4": 8 * MIB, "xfs": 300 * MIB, "btrfs": 110 * MIB}
"""Of a disk: an ext4 with a journal (mke2fs leaves it out below 2048 blocks), what mkfs.xfs asks for, and what
mkfs.btrfs asks for with two copies of the metadata, 109 MiB, plus the MiB of the mark."""


@dataclass(frozen=True, slots=True)
class _Number:
    low: int
    high: int

    def admits(self, text: str) -> bool:
        return (
            text.isascii()
            and text.isdecimal()
            and len(text) <= len(str(self.high))
            and self.low <= int(text) <= self.high
        )

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class _OneOf:
    values: tuple[str, ...]

    def admits(self, text: str) -> bool:
        return text in self.values

    def __str__(self) -> str:
        return " or ".join(self.values)


_Rule = _Number | _OneOf
_ALLOWED: Mapping[str, Mapping[str, Mapping[str, _Rule]]] = {
    "ext4": {
        "-i": {"": _Number(1024, 64 * MIB)},  # bytes per inode
        "-I": {"": _OneOf(("256", "512", "1024"))},  # bytes of an inode
        "-N": {"": _Number(16, 2**32 - 1)},  # number of inodes
        "-m": {"": _Number(0, 50)},  # per cent reserved for root
        "-J": {"size": _Number(4, 10240)},  # MiB of the journal
    },
    "xfs": {
        "-i": {"size": _OneOf(("512", "1024", "2048")), "maxpct": _Number(0, 100)},
        "-d": {"agcount": _Number(2, 1024)},
        "-n": {"size": _OneOf(("4096", "8192", "16384", "32768", "65536"))},
    },
    "btrfs": {
        "-n": {"": _OneOf(("16384", "32768", "65536"))},  # bytes of a metadata block
        "-m": {"": _OneOf(("single", "dup"))},
        "-d": {"": _OneOf(("single", "dup"))},
    },
}
"""By file system, option, and the key before ``=`` (empty where the value stands alone). See mke2fs(8), mkfs.xfs(8),
mkfs.btrfs(8)."""


def arguments(text: str, fs_type: str) -> tuple[str, ...]:
    """The options as mkfs takes them, each followed by its value.

    Raises:
        InvalidArgument: one of them is not allowed for this type; the text says which are.
    """
    if len(text) > LONGEST_TEXT:
        raise InvalidArgument(f"{MKFS_OPTIONS} is longer than {LONGEST_TEXT} characters")
    words = text.split()
    options, values = words[::2], words[1::2]
    if len(options) != len(values):
        raise _refused(words[-1], fs_type, why="has no value, or the value is not a word of its own")
    for option, value in zip(options, values, strict=True):
        _require_allowed(option, value, fs_type)
    twice = next((option for option in options if options.count(option) > 1), None)
    if twice is not None:
        raise _refused(twice, fs_type, why="is given twice")
    return tuple(words)


def require_makeable(text: str, capabilities: Collection[Capability], *, size_bytes: int) -> None:
    """Passes a volume of this size whose class has these mkfs options, if every file system asked for can be made.

    Raises:
        InvalidArgument: an option is not allowed for a type that is asked for.
        OutOfRange: the volume is too small for one; the text says the minimum.
    """
    for fs_type in sorted({each.fs_type for each in capabilities if isinstance(each.access, Mount)}):
        arguments(text, fs_type)
        smallest = SMALLEST_BYTES[fs_type]
        if size_bytes < smallest:
            raise OutOfRange(
                f"a volume of {size_bytes} bytes is too small for {fs_type}, which needs at least {smallest} bytes "
                f"({smallest // MIB}Mi); ask for more, or for another file system"
            )


def _require_allowed(option: str, value: str, fs_type: str) -> None:
    rules = _ALLOWED[fs_type].get(option)
    if rules is None:
        raise _refused(option, fs_type, why="is not allowed")
    for part in [value] if "" in rules else value.split(","):
        key, _, rest = part.rpartition("=")
        rule = rules.get(key)
        if rule is None or not rule.admits(rest):
            raise _refused(f"{option} {value}", fs_type, why="is not allowed")


def _refused(what: str, fs_type: str, *, why: str) -> InvalidArgument:
    return InvalidArgument(f"{MKFS_OPTIONS}: {shown(what)} {why}; for {fs_type} there are: {_described(fs_type)}")


def _described(fs_type: str) -> str:
    return "; ".join(
        f"{option} {key}{'=' if key else ''}({rule})"
        for option, rules in _ALLOWED[fs_type].items()
        for key, rule in rules.items()
    )
