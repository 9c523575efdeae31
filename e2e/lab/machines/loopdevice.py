"""Loop devices by ioctl: a file as a block device that clears itself when nobody has it open any more.

Image and "clear yourself" are set in one request, so that a process that is killed at any point leaves no device
behind; the losetup program needs two steps for that. Nothing here knows machines or disks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

CONTROL = Path("/dev/loop-control")
MAJOR = 7
TRIES = 64
BLOCK_BYTES = 512

# Linux include/uapi/linux/loop.h
_SET_CAPACITY = 0x4C07
_CONFIGURE = 0x4C0A
_GET_FREE = 0x4C82
_READ_ONLY = 1
_AUTOCLEAR = 4
# struct loop_config: the image's descriptor, the block size, struct loop_info64 with nothing but its flags, reserved.
_CONFIG = struct.Struct("=2I 52x I 176x 64x")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDevice:
    """An attached device; ``held`` is the descriptor that keeps it."""

    number: int
    node: Path
    held: int

    @property
    def sysfs(self) -> Path:
        """What the kernel tells about it."""
        return Path("/sys/block") / f"loop{self.number}"

    def grow(self) -> None:
        """Takes the image's present size.

        Raises:
            OSError: the kernel refuses.
        """
        fcntl.ioctl(self.held, _SET_CAPACITY)

    def close(self) -> None:
        """Lets go: the device clears itself now, or when the last other user (a mount) has gone."""
        self.node.unlink(missing_ok=True)
        os.close(self.held)


def attach(image: Path, node: Path, *, read_only: bool = False) -> LoopDevice:
    """Attaches the image to a free loop device, for which ``node`` becomes a device node.

    Raises:
        OSError: no loop device is free, the image cannot be opened, or the kernel refuses.
    """
    mode = os.O_RDONLY if read_only else os.O_RDWR
    backing = os.open(image, mode | os.O_CLOEXEC)
    try:
        flags = _AUTOCLEAR | (_READ_ONLY if read_only else 0)
        configuration = _CONFIG.pack(backing, BLOCK_BYTES, flags)
        for _ in range(TRIES):
            number = _free_number()
            held = _configured(node, number, configuration=configuration, mode=mode)
            if held is not None:
                return LoopDevice(number=number, node=node, held=held)
    finally:
        os.close(backing)
    raise OSError(errno.EBUSY, "others took every free loop device first")


def _free_number() -> int:
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(control, _GET_FREE)
    finally:
        os.close(control)


def _configured(node: Path, number: int, *, configuration: bytes, mode: int) -> int | None:
    """A descriptor that keeps the device, None when somebody else was quicker."""
    os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(MAJOR, number))
    try:
        device = os.open(node, mode | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _CONFIGURE, configuration)
            # Held for reading only: a mount may be refused while somebody has its device open for writing.
            return os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(device)
    except OSError as error:
        node.unlink()
        if error.errno == errno.EBUSY:
            return None
        raise
