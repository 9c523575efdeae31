"""What the kernel knows of a block device and of the file system on it, asked for at sysfs and at the device itself.

Nothing here reads a serial: a virtio serial is asked from the disk at each read, so one dead disk would hold up the
looks at all others. The device is read past the page cache, the first and the last block: a disk that was cut short
behind the VM's back still answers at its beginning. A read that hangs cannot even be killed, and keeps the process from
ending with it; so a disk on which others already wait is not read at all. All calls block.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kubevirt_csi.domain.disks import DeviceNumber
from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.domain.mountinfo import MountEntry

BLOCK_BYTES = 4096
"""The largest sector size, and the alignment that O_DIRECT wants."""

PATIENCE_SECONDS = 4.0
"""Less than the caller waits for the whole look, so that the figures come with the answer."""
POLL_SECONDS = 0.1

# Fields of sysfs "stat" (Documentation/block/stat.rst): completed reads, writes, discards and flushes; in flight.
_COMPLETED = (0, 4, 11, 15)
_IN_FLIGHT = 8

_OFFLINE = ("offline", "transport-offline")
"""States of a SCSI device (drivers/scsi/scsi_sysfs.c) in which every request fails until somebody intervenes."""
_GONE = (errno.ENXIO, errno.ENODEV, errno.ENOENT)


class DeviceHealth:
    """Tells what is wrong with devices.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: the folder of device nodes, that of the host.
        patience_seconds: for how long a disk may complete nothing of what it was asked for.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._sysfs = sysfs_root
        self._dev = dev_root
        self._patience = patience_seconds

    def of_file_system(self, mounted: MountEntry) -> Iterator[Ailment]:
        """What is wrong with the file system and the device below it; nothing for one that has no device."""
        if mounted.device.major == 0 and mounted.fs_type != "btrfs":
            return
        # A btrfs mount has its disk's number as long as that is here, and then one that is no disk's.
        name = self._named(mounted.device)
        if name is not None:
            yield from self._ext4_errors(name)
            yield from self._btrfs_errors(name)
        yield from self._of(name, what=mounted.source)

    def of(self, number: DeviceNumber) -> Iterator[Ailment]:
        """What is wrong with the device of that number."""
        yield from self._of(self._named(number), what=str(number))

    def _of(self, name: str | None, *, what: str) -> Iterator[Ailment]:
        if name is None:
            yield _ailment(
                Reason.DEVICE_GONE,
                f"the disk {what} has left this node while it was in use. Look at the VM instance's volumeStatus in "
                "the infra cluster; end all pods that use the volume",
            )
            return
        state = _text(self._sysfs / "block" / name / "device" / "state")
        if state in _OFFLINE:
            text = f"the kernel has given up disk {name} (state {state}) and fails every request to it"
            yield _ailment(Reason.DEVICE_OFFLINE, f"{text}. Look at this node's kernel log")
            return
        waiting = in_vain(lambda: self._progress(name), seconds=self._patience)
        if waiting:
            yield _ailment(
                Reason.NOT_RESPONDING,
                f"disk {name} has {waiting} requests under way and has completed none for {self._patience:g} s. Look "
                "at this node's kernel log and at the volume in the infra cluster",
            )
            return
        yield from self._read(name)

    def _read(self, name: str) -> Iterator[Ailment]:
        try:
            _read_edges(self._dev / name.replace("!", "/"), number=self._number(name))
        except OSError as error:
            reason = Reason.DEVICE_GONE if error.errno in _GONE else Reason.IO_ERROR
            text = f"disk {name} cannot be read: {error.strerror}"
            yield _ailment(reason, f"{text}. Look at this node's kernel log and at the volume in the infra cluster")

    def _ext4_errors(self, name: str) -> Iterator[Ailment]:
        """The errors that ext4 has counted since the last fsck: they are kept in the superblock, over mounts."""
        folder = self._sysfs / "fs" / "ext4" / name
        count = _number(folder / "errors_count")
        if count:
            last = datetime.fromtimestamp(_number(folder / "last_error_time"), UTC)
            yield _ailment(
                Reason.FILE_SYSTEM_ERRORS,
                f"the error count of ext4 on {name} is {count}, the last error was at {last:%Y-%m-%dT%H:%M:%SZ} in "
                f"{_text(folder / 'last_error_func') or 'an unknown function'}. It may be read-only or unusable by "
                "now; it has to be unmounted (end all pods that use it) and checked with fsck.ext4",
                severity=Severity.DEGRADED,
            )

    def _btrfs_errors(self, name: str) -> Iterator[Ailment]:
        """The errors that btrfs has counted for the device, as `btrfs device stats` shows them."""
        for device in (self._sysfs / "fs" / "btrfs").glob(f"*/devices/{name}"):
            for stats in device.parent.parent.glob("devinfo/*/error_stats"):
                counted = [line for line in _text(stats).splitlines() if not line.endswith(" 0")]
                if counted:
                    yield _ailment(
                        Reason.FILE_SYSTEM_ERRORS,
                        f"btrfs has counted errors of disk {name}: {', '.join(counted)}. Run `btrfs scrub`; look at "
                        "this node's kernel log",
                        severity=Severity.DEGRADED,
                    )

    def _named(self, number: DeviceNumber) -> str | None:
        """The name of the disk with this number, or None when it has left."""
        numbers = (self._sysfs / "block").glob("*/dev")
        return next((file.parent.name for file in numbers if _text(file) == str(number)), None)

    def _progress(self, name: str) -> tuple[int, int]:
        """How many requests the disk has completed, and how many are in flight; (0, 0) when nobody knows.

        Only multi-queue disks, as virtio and SCSI ones are, count what is really there; others only add and subtract.
        """
        folder = self._sysfs / "block" / name
        fields = [int(field) for field in _text(folder / "stat").split()]
        if len(fields) <= _IN_FLIGHT or not (folder / "mq").is_dir():
            return 0, 0
        return sum(fields[at] for at in _COMPLETED if at < len(fields)), fields[_IN_FLIGHT]

    def _number(self, name: str) -> DeviceNumber:
        return DeviceNumber.parse((self._sysfs / "block" / name / "dev").read_text())


def in_vain(progress: Callable[[], tuple[int, int]], *, seconds: float) -> int:
    """How many requests a disk has under way when it completes none of them for so long; 0 when it works.

    ``progress`` tells how many it has completed, and how many are under way.
    """
    deadline = time.monotonic() + seconds
    before, _ = progress()
    while True:
        completed, in_flight = progress()
        if not in_flight or completed != before:
            return 0
        if time.monotonic() >= deadline:
            return in_flight
        time.sleep(POLL_SECONDS)


def _read_edges(path: Path, *, number: DeviceNumber) -> None:
    """Reads the first and the last block from the device and not from a cache.

    Raises:
        OSError: it cannot be read, or the node at the path is another device's.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECT)
    try:
        found = os.fstat(fd)
        if not stat.S_ISBLK(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != number:
            raise OSError(errno.ENXIO, f"{path} is no device node of {number}")
        last = max(0, os.lseek(fd, 0, os.SEEK_END) // BLOCK_BYTES - 1) * BLOCK_BYTES
        with mmap.mmap(-1, BLOCK_BYTES) as buffer:  # O_DIRECT wants aligned memory
            for start in sorted({0, last}):
                if os.preadv(fd, [buffer], start) == 0:
                    raise OSError(errno.EIO, f"nothing can be read at byte {start}")
    finally:
        os.close(fd)


def _ailment(reason: Reason, message: str, *, severity: Severity = Severity.INACCESSIBLE) -> Ailment:
    return Ailment(severity, reason, message)


def _text(file: Path) -> str:
    """What the file says; empty where there is none, or it cannot be read just now."""
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""


def _number(file: Path) -> int:
    text = _text(file)
    return int(text) if text.isdigit() else 0
