"""A worker node without a VM: loop devices that look like hot-plugged disks, in a mount namespace of the test process.

For each disk there is a block device node of the loop device's number in ``dev``, and in ``sys/block`` a folder with a
serial of our own and links to the loop device's real sysfs files. The driver's adapters are pointed at both.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024

_CLONE_NEWNS = 0x00020000
# XFS_IOC_GOINGDOWN and EXT4_IOC_SHUTDOWN are the same number: _IOR('X', 125, u32), from xfs_fs.h and ext4.h.
_SHUTDOWN = 0x8004587D
_FLUSH_THE_LOG = 1


def run(*argv: str) -> str:
    """Runs a program that must succeed."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def enter_private_mount_namespace() -> None:
    """From here on no mount of this process is seen outside, and all of them end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    # Shared within the namespace, as kubelet's folder is; private towards the outside.
    run("mount", "--make-rprivate", "/")


@dataclass(frozen=True, slots=True)
class PluggedDisk:
    """One loop device that the driver sees as a disk."""

    name: str
    path: Path
    image: Path
    loop: Path

    def write(self, offset: int, data: bytes) -> None:
        """Puts bytes onto the disk, past every cache of the driver."""
        with self.path.open("r+b") as device:
            device.seek(offset)
            device.write(data)
            device.flush()
            os.fsync(device.fileno())

    def read(self, offset: int, length: int) -> bytes:
        """Reads bytes from the disk."""
        with self.path.open("rb") as device:
            device.seek(offset)
            return device.read(length)


class Machine:
    """Plugs and unplugs disks below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sysfs = root / "sys"
        self.dev = root / "dev"
        self.state = root / "state"
        self.kubelet = root / "kubelet"
        for folder in (
            self.sysfs / "block",
            self.sysfs / "fs" / "ext4",
            self.sysfs / "class" / "scsi_host",
            self.dev,
            self.kubelet,
        ):
            folder.mkdir(parents=True)
        self._held: dict[PluggedDisk, int] = {}

    def plug(
        self,
        name: str,
        *,
        serial: str,
        size: int = 32 * MIB,
        bus: str = "virtio",
        image: Path | None = None,
        read_only: bool = False,
    ) -> PluggedDisk:
        """A new blank disk, or one with the image of a disk that was here before."""
        if image is None:
            image = self.root / f"{name}.img"
            with image.open("wb") as file:
                file.truncate(size)
        protected = ("--read-only",) if read_only else ()
        loop = Path(run("losetup", *protected, "--find", "--show", str(image)).strip())
        held = os.open(loop, os.O_RDONLY)
        # Detached as soon as nobody has it open, so that a killed test leaves no loop device either.
        run("losetup", "--detach", str(loop))
        disk = PluggedDisk(name=name, path=self.dev / name, image=image, loop=loop)
        self._held[disk] = held
        os.mknod(disk.path, 0o600 | stat.S_IFBLK, loop.stat().st_rdev)
        self._show(disk, serial=serial, bus=bus)
        return disk

    def unplug(self, disk: PluggedDisk) -> None:
        """The disk leaves; its image stays."""
        self.hide(disk)
        self._detach(disk)

    def grow(self, disk: PluggedDisk, size: int) -> None:
        """The disk becomes larger under whoever uses it."""
        os.truncate(disk.image, size)
        run("losetup", "--set-capacity", str(disk.loop))

    def hide(self, disk: PluggedDisk) -> None:
        """Takes the disk out of sysfs only."""
        folder = self.sysfs / "block" / disk.name
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        folder.rmdir()

    def set_serial(self, disk: PluggedDisk, serial: str, *, bus: str = "virtio") -> None:
        """Another disk under the same name."""
        self.hide(disk)
        self._show(disk, serial=serial, bus=bus)

    def ext4(self, disk: PluggedDisk) -> Path:
        """Where the kernel shows an ext4 on the disk, as long as one is mounted."""
        return self.sysfs / "fs" / "ext4" / disk.name

    def show_btrfs(self, disk: PluggedDisk) -> None:
        """Shows what the kernel knows of the mounted btrfs on the disk."""
        [real] = (device.parent.parent for device in Path("/sys/fs/btrfs").glob(f"*/devices/{disk.loop.name}"))
        shown = self.sysfs / "fs" / "btrfs" / real.name
        (shown / "devices" / disk.name).mkdir(parents=True)
        (shown / "devinfo").symlink_to(real / "devinfo")

    def folder(self, name: str) -> Path:
        """A folder below kubelet's."""
        path = self.kubelet / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def mounts_below(self) -> list[str]:
        """The mount points below this machine's folder, in the order of mounting."""
        points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point for point in points if point.startswith(f"{self.root}/")]

    def close(self) -> None:
        """Unmounts everything and detaches the loop devices."""
        for point in reversed(self.mounts_below()):
            run("umount", "--lazy", point)
        for disk in tuple(self._held):
            self._detach(disk)

    def _detach(self, disk: PluggedDisk) -> None:
        os.close(self._held.pop(disk))
        disk.path.unlink(missing_ok=True)

    def _show(self, disk: PluggedDisk, *, serial: str, bus: str) -> None:
        real = (Path("/sys/block") / disk.loop.name).resolve()
        folder = self.sysfs / "block" / disk.name
        folder.mkdir()
        self.ext4(disk).unlink(missing_ok=True)
        self.ext4(disk).symlink_to(Path("/sys/fs/ext4") / disk.loop.name)
        for name in ("size", "dev", "ro", "holders", "queue", "diskseq", "stat", "mq"):
            if (real / name).exists():
                (folder / name).symlink_to(real / name)
        if bus == "virtio":
            (folder / "serial").write_text(serial[:20])
        else:
            (folder / "device").mkdir()
            page = bytes((0, 0x80)) + len(serial).to_bytes(2, "big") + serial.encode()
            (folder / "device" / "vpd_pg80").write_bytes(page)


@contextmanager
def machine(root: Path) -> Iterator[Machine]:
    """A machine that leaves nothing behind."""
    made = Machine(root)
    try:
        yield made
    finally:
        made.close()


def lose(path: Path) -> None:
    """The file system at the path stops answering, as when its disk has gone: every look at it is an I/O error."""
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _FLUSH_THE_LOG))
    finally:
        os.close(folder)
