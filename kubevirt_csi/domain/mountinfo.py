"""The kernel's mount table: what is mounted where, from which device.

Only this table decides what is mounted. ``os.path.ismount`` misses bind mounts within one file system, and comparing
path names or sources is guesswork: the source is whatever name somebody gave to mount(8).
Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kubevirt_csi.domain.disks import DeviceNumber

_ESCAPE = re.compile(r"\\([0-7]{3})")
_FIELDS_BEFORE_TAGS = 6
_FIELDS_AFTER_DASH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEntry:
    """One mount. ``root`` is the folder of the file system that it shows, ``options`` are this mount's own.

    ``device`` is the file system's device: of a bound device node it is the one of the folder the node lies in.
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
    def read_only(self) -> bool:
        """Whether nothing can be written through this mount, for its own sake or its file system's."""
        return "ro" in self.options or "ro" in self.super_options


@dataclass(frozen=True, slots=True)
class MountTable:
    """All mounts of this process's mount namespace, oldest first."""

    entries: tuple[MountEntry, ...]

    @classmethod
    def parse(cls, text: str) -> MountTable:
        """Reads /proc/self/mountinfo.

        Raises:
            ValueError: a line is not of that format.
        """
        return cls(tuple(_entry(line) for line in text.splitlines()))

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
    """The mount points, for error texts."""
    return ", ".join(sorted({entry.mount_point for entry in entries}))


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
        options=frozenset(options.split(",")),
        fs_type=fs_type,
        source=_unescape(source),
        super_options=frozenset(super_options.split(",")),
    )


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
