"""The kernel's mount table: what is mounted where, from which device.

Only this table decides what is mounted. ``os.path.ismount`` misses bind mounts within one file system, and comparing
path names or sources is guesswork: the source is whatever name somebody gave to mount(8).

The surprising facts: a bound device node is shown as a mount of the folder that it lies in, and btrfs shows a device
number that no disk has (whoever reads the table replaces it). Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kubevirt_csi.domain.disks import DeviceNumber

_ESCAPE = re.compile(r"\\([0-7]{3})")
# A value with commas stands between quotes: context="system_u:object_r:container_file_t:s0:c1,c2".
_OPTION = re.compile(r"(?:\"[^\"]*\"|[^,])+")
_FIELDS_BEFORE_TAGS = 6
_FIELDS_AFTER_DASH = 3
_DELETED = "//deleted"
"""Where the kernel adds it (d_path): a folder's name cannot have two slashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEntry:
    """One mount. ``root`` is the folder of the file system that it shows, ``options`` are this mount's own.

    ``device`` is the file system's device: of a bound device node it is the one of the folder the node lies in.
    ``super_options`` are the file system's, the same in all its mounts; values are shown without their quotes.
    """

    mount_id: int
    device: DeviceNumber
    root: str
    mount_point: str
    options: frozenset[str]
    fs_type: str
    source: str
    super_options: frozenset[str]

    @property
    def is_deleted(self) -> bool:
        """Whether what is shown was removed from where it was, as the node of a device that has left."""
        return self.root.endswith(_DELETED)

    @property
    def name(self) -> str:
        """The last part of ``root``: of a bound device node the disk's name, whether the node is still there or not."""
        return self.root.removesuffix(_DELETED).rpartition("/")[2]

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written through this mount, for its own sake or its file system's."""
        return "ro" in self.options or "ro" in self.super_options


@dataclass(frozen=True, slots=True)
class MountTable:
    """All mounts of this process's mount namespace, oldest first."""

    entries: tuple[MountEntry, ...]

    @classmethod
    def parse(cls, text: str) -> MountTable:
        """Reads /proc/self/mountinfo, whose lines end with a newline and nothing else.

        Names of folders come from pods, and may hold what Python also takes for the end of a line.

        Raises:
            ValueError: a line is not of that format.
        """
        return cls(tuple(_entry(line) for line in text.split("\n") if line))

    def at(self, path: str) -> tuple[MountEntry, ...]:
        """The mounts on exactly this path, the one that is seen last."""
        return tuple(entry for entry in self.entries if entry.mount_point == path)

    def top(self, path: str) -> MountEntry | None:
        """The mount that is seen at this path; None when it is no mount point."""
        return next(iter(reversed(self.at(path))), None)

    def of(self, device: DeviceNumber) -> tuple[MountEntry, ...]:
        """All mounts of this device's file system, binds and parts of it included."""
        return tuple(entry for entry in self.entries if entry.device == device)


def paths(entries: Iterable[MountEntry]) -> str:
    """The mount points, for error texts; bytes that are no text are escaped."""
    found = ", ".join(sorted({entry.mount_point for entry in entries}))
    return found.encode(errors="backslashreplace").decode()


def _entry(line: str) -> MountEntry:
    fields = line.split(" ")
    dash = fields.index("-", _FIELDS_BEFORE_TAGS)
    mount_id, _parent, device, root, mount_point, options = fields[:_FIELDS_BEFORE_TAGS]
    fs_type, source, super_options = fields[dash + 1 : dash + 1 + _FIELDS_AFTER_DASH]
    return MountEntry(
        mount_id=int(mount_id),
        device=DeviceNumber.parse(device),
        root=_unescape(root),
        mount_point=_unescape(mount_point),
        options=_options(options),
        fs_type=fs_type,
        source=_unescape(source),
        super_options=_options(super_options),
    )


def _options(text: str) -> frozenset[str]:
    return frozenset(_unescape(option.replace('"', "")) for option in _OPTION.findall(text))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
