"""A worker's operating system in memory: disks that hold bytes, a mount table, folders, records.

It behaves as the real one does where that matters for losing data: mkfs writes where it is told to, a mounted disk is
in use, a bind shows what is mounted at its source, an unmount takes off the topmost mount only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from kubevirt_csi.domain.blank import Probe, Probed
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.mountinfo import MountEntry, MountTable
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable
from kubevirt_csi.ports.host import FileSystemUsage, Record

MIB = 1024 * 1024
SIGNATURE_AT = 1024
SIGNATURE_LENGTH = 16
READ_STEP = MIB


def is_zero(data: bytearray) -> bool:
    return data == bytes(len(data))


@dataclass(eq=False)
class FakeDisk:
    """A disk and what is on it."""

    shown: Disk
    content: bytearray
    opened_exclusively: bool = False

    def sign(self, kind: str) -> None:
        """Puts the signature of a file system, partition table or member onto the disk."""
        self.content[SIGNATURE_AT : SIGNATURE_AT + SIGNATURE_LENGTH] = kind.encode().ljust(SIGNATURE_LENGTH, b"\0")

    @property
    def signature(self) -> str:
        return bytes(self.content[SIGNATURE_AT : SIGNATURE_AT + SIGNATURE_LENGTH]).rstrip(b"\0").decode()


@dataclass
class FakeHost:
    """Implements every port of ``ports.host``. ``calls`` has the changes in their order."""

    disks: dict[str, FakeDisk] = field(default_factory=dict)
    mounts: list[MountEntry] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    """Raised once by the named method; ``"make late"`` is raised when the work is done."""
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Called once when the named method begins."""
    read_only_binds_work: bool = True
    busy: set[str] = field(default_factory=set)
    _made: int = 0

    def plug(self, name: str, *, serial: str, size: int = 8 * MIB, bus: Bus = Bus.VIRTIO) -> FakeDisk:
        self._made += 1
        shown = Disk(
            name=name,
            path=f"/dev/{name}",
            number=DeviceNumber(253, self._made),
            size_bytes=size,
            serial=serial,
            bus=bus,
            sequence=self._made,
        )
        self.disks[name] = FakeDisk(shown, bytearray(size))
        return self.disks[name]

    def change(self, name: str, **attributes: object) -> None:
        """Shows the disk with other attributes from now on."""
        disk = self.disks[name]
        disk.shown = replace(disk.shown, **attributes)  # type: ignore[arg-type] # a test names the right ones

    def mount_elsewhere(self, disk: FakeDisk, path: str, *, root: str = "/", options: str = "rw") -> None:
        self.mounts.append(self._entry(disk.shown.number, path, root=root, options=options.split(",")))

    def mount_points(self) -> list[str]:
        return [entry.mount_point for entry in self.mounts]

    def formats(self) -> list[str]:
        return [call for call in self.calls if call.startswith("make ")]

    # Disks

    async def all(self) -> tuple[Disk, ...]:
        self._enter("all")
        return tuple(disk.shown for disk in self.disks.values())

    async def rescan(self) -> None:
        self._enter("rescan")
        self.calls.append("rescan")

    @asynccontextmanager
    async def opened(self, disk: Disk) -> AsyncIterator[FakeDevice]:
        self._enter("opened")
        if self.disks.get(disk.name) is None or self.disks[disk.name].shown != disk:
            raise Unavailable(f"{disk} has left")
        yield FakeDevice(self, self.disks[disk.name], disk)

    # Filesystems

    async def probe(self, disk: Disk) -> Probe:
        self._enter("probe")
        found = self._disk(disk).signature
        if found == "ambivalent":
            return Probe(result=Probed.AMBIVALENT)
        if not found:
            return Probe(result=Probed.NOTHING)
        return Probe(result=Probed.FOUND, kind=found, is_file_system=found in ("ext4", "xfs", "btrfs"))

    async def make(self, disk: Disk, fs_type: str) -> None:
        self._enter("make")
        self.calls.append(f"make {fs_type} on {disk.name}")
        self._disk(disk).sign(fs_type)
        self._leave("make")

    async def check(self, disk: Disk, fs_type: str) -> None:
        self._enter("check")
        self.calls.append(f"check {fs_type} on {disk.name}")

    # Mounts

    async def table(self) -> MountTable:
        return MountTable(tuple(self.mounts))

    async def mount(self, *, device_path: str, target: str, fs_type: str, options: tuple[str, ...]) -> None:
        self._enter("mount")
        self.calls.append(f"mount {device_path} on {target} with {','.join(options) or 'nothing'}")
        disk = next(disk for disk in self.disks.values() if disk.shown.path == device_path)
        if disk.signature != fs_type:
            raise Internal(f"wrong fs type on {device_path}")
        shown = ["ro" if "ro" in options else "rw", *(option for option in options if option.startswith("no"))]
        self.mounts.append(self._entry(disk.shown.number, target, fs_type=fs_type, options=shown))

    async def bind(self, *, source: str, target: str, read_only: bool) -> None:
        self._enter("bind")
        self.calls.append(f"bind {source} to {target}{' read-only' if read_only else ''}")
        below = next((entry for entry in reversed(self.mounts) if entry.mount_point == source), None)
        if below is None:
            below = self._entry(DeviceNumber(0, 6), source, root=f"/{source.rpartition('/')[2]}", options=["rw"])
        options = (below.options - {"rw"}) | {"ro"} if read_only and self.read_only_binds_work else below.options
        self._made += 1
        self.mounts.append(replace(below, mount_id=self._made, mount_point=target, options=frozenset(options)))

    async def unmount(self, target: str) -> None:
        self._enter("unmount")
        self.calls.append(f"unmount {target}")
        if target in self.busy:
            raise FailedPrecondition(f"{target} is busy")
        position = max(index for index, entry in enumerate(self.mounts) if entry.mount_point == target)
        del self.mounts[position]

    # Places

    def canonical(self, path: str) -> str:
        return path.rstrip("/")

    async def device_at(self, path: str) -> DeviceNumber | None:
        top = next((entry for entry in reversed(self.mounts) if entry.mount_point == path), None)
        disk = self.disks.get(top.root.rpartition("/")[2]) if top is not None else None
        return disk.shown.number if disk is not None else None

    async def exists(self, path: str) -> bool:
        return path in self.folders or path in self.files

    async def make_directory(self, path: str) -> None:
        self._enter("make_directory")
        if path in self.files or any(file.startswith(f"{path}/") for file in self.files):
            raise FailedPrecondition(f"{path} is not empty")
        self.folders.add(path)

    async def make_file(self, path: str) -> None:
        self._enter("make_file")
        if path in self.folders or self.files.get(path):
            raise FailedPrecondition(f"{path} is not empty")
        self.files[path] = b""

    async def remove(self, path: str) -> None:
        self._enter("remove")
        if path in self.mount_points():
            raise AssertionError(f"{path} is a mount point")
        if self.files.get(path) or any(file.startswith(f"{path}/") for file in self.files):
            raise Internal(f"{path} is not empty")
        self.folders.discard(path)
        self.files.pop(path, None)

    # Usage

    async def file_system(self, path: str) -> FileSystemUsage:
        del path
        return FileSystemUsage(
            total_bytes=100, available_bytes=60, used_bytes=40, total_inodes=10, available_inodes=7, used_inodes=3
        )

    async def device_bytes(self, path: str) -> int:
        number = await self.device_at(path)
        return next(disk.shown.size_bytes for disk in self.disks.values() if disk.shown.number == number)

    # Records

    async def remember(self, record: Record) -> None:
        self._enter("remember")
        self.records[record.volume_id] = record

    async def recall(self, volume_id: str) -> Record | None:
        self._enter("recall")
        return self.records.get(volume_id)

    def in_use(self, disk: FakeDisk) -> bool:
        mounted = any(entry.device == disk.shown.number for entry in self.mounts)
        return mounted or disk.opened_exclusively or bool(disk.shown.holders)

    def _disk(self, disk: Disk) -> FakeDisk:
        return self.disks[disk.name]

    def _entry(
        self, device: DeviceNumber, path: str, *, root: str = "/", fs_type: str = "ext4", options: list[str]
    ) -> MountEntry:
        self._made += 1
        return MountEntry(
            mount_id=self._made,
            device=device,
            root=root,
            mount_point=path,
            options=frozenset(options),
            fs_type=fs_type,
            source="/dev/source",
            super_options=frozenset({"rw"}),
        )

    def _enter(self, method: str) -> None:
        hook = self.before.pop(method, None)
        if hook is not None:
            hook()
        failure = self.failures.pop(method, None)
        if failure is not None:
            raise failure

    def _leave(self, method: str) -> None:
        failure = self.failures.pop(f"{method} late", None)
        if failure is not None:
            raise failure


@dataclass
class FakeDevice:
    """An opened disk of the fake host."""

    host: FakeHost
    fake: FakeDisk
    disk: Disk

    async def verify(self) -> None:
        self.host._enter("verify")
        if self.host.disks.get(self.disk.name) is not self.fake or self.fake.shown != self.disk:
            raise Unavailable(f"{self.disk} became another disk")

    async def in_use(self) -> bool:
        self.host._enter("in_use")
        return self.host.in_use(self.fake)

    async def edges_are_zero(self) -> bool:
        self.host._enter("edges_are_zero")
        return is_zero(self.fake.content[:MIB]) and is_zero(self.fake.content[-MIB:])

    async def zeroes(self, start: int) -> AsyncIterator[int]:
        position = start
        while position < len(self.fake.content):
            self.host._enter("zeroes")
            self.host.calls.append(f"read at {position}")
            if not is_zero(self.fake.content[position : position + READ_STEP]):
                return
            position += READ_STEP
            yield position

    async def read_mark(self) -> str | None:
        block = bytes(self.fake.content[-MIB : -MIB + 64])
        return block[5:].rstrip(b"\0").decode() if block.startswith(b"MARK ") else None

    async def write_mark(self, volume_id: str) -> None:
        self.host._enter("write_mark")
        self.host.calls.append("mark")
        self.fake.content[-MIB : -MIB + 64] = f"MARK {volume_id}".encode().ljust(64, b"\0")

    async def erase_mark(self, volume_id: str) -> None:
        self.host._enter("erase_mark")
        if await self.read_mark() == volume_id:
            self.host.calls.append("erase mark")
            self.fake.content[-MIB : -MIB + 64] = bytes(64)

    async def flush(self) -> None:
        self.host._enter("flush")
        self.host.calls.append(f"flush {self.disk.name}")
