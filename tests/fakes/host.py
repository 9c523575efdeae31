"""A worker's operating system in memory: disks that hold bytes, a mount table, folders, records.

It behaves as the real one does where that matters for losing data: mkfs writes where it is told to, a mounted disk is
in use, a bind shows what is mounted at its source, an unmount takes off the topmost mount only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from kubevirt_csi.domain import mount_options, selinux
from kubevirt_csi.domain.blank import Probe, Probed
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.health import Ailment
from kubevirt_csi.domain.limits import Room
from kubevirt_csi.domain.mountinfo import MountEntry, MountTable
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable
from kubevirt_csi.ports.host import FileSystemUsage, Finding, Record, SuperBlock
from tests.fakes.disks import MIB, FakeDevice, FakeDisk, is_zero

__all__ = ["FILLED", "MIB", "FakeDevice", "FakeDisk", "FakeHost", "is_zero"]

FILLED = FileSystemUsage(
    total_bytes=100, available_bytes=60, used_bytes=40, total_inodes=10, available_inodes=7, used_inodes=3
)


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
    free_room: Room = field(default_factory=lambda: Room(scsi=True, free_ports=None))
    read_only_binds_work: bool = True
    selinux_is_on: bool = True
    busy: set[str] = field(default_factory=set)
    unmarked_formats: list[str] = field(default_factory=list)
    """Disks on which a file system was made while they had no mark of a started format."""
    slow_to_trim: set[str] = field(default_factory=set)
    """Mount points whose trim does not end by itself."""
    hanging: dict[str, list[asyncio.Future[Finding]]] = field(default_factory=dict)
    """Mount points that no look at comes back from, with the looks."""
    ailments: dict[str, list[Ailment]] = field(default_factory=dict)
    """What a look finds to be wrong, by mount point."""
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

    def multipath(self, name: str, *paths: FakeDisk) -> FakeDisk:
        """A multipath map over these disks, which from now on are held by it."""
        self._made += 1
        legs = tuple(path.shown for path in paths)
        first, number = legs[0], DeviceNumber(252, self._made)
        shown = replace(first, name=name, path=f"/dev/{name}", number=number, sequence=self._made, paths=legs)
        for leg in legs:
            self.change(leg.name, holders=(name,))
        self.disks[name] = FakeDisk(shown, paths[0].content)
        return self.disks[name]

    def change(self, name: str, **attributes: object) -> None:
        """Shows the disk with other attributes from now on."""
        disk = self.disks[name]
        disk.shown = replace(disk.shown, **attributes)  # type: ignore[arg-type] # a test names the right ones

    def resize(self, name: str, size: int) -> None:
        """Gives the disk this many bytes, under whoever uses it."""
        content = self.disks[name].content
        content[:] = content[:size].ljust(size, b"\0")
        self.change(name, size_bytes=size)

    def mount_elsewhere(self, disk: FakeDisk, path: str, *, root: str = "/", options: str = "rw") -> None:
        self.mounts.append(self._entry(disk.shown.number, path, root=root, options=options.split(",")))

    def show_as(self, option: str, path: str) -> None:
        """The kernel gives the file system at the path this option, in all its mounts."""
        device = next(entry.device for entry in self.mounts if entry.mount_point == path)
        self.mounts = [
            replace(entry, super_options=frozenset({option})) if entry.device == device else entry
            for entry in self.mounts
        ]

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

    # Hotplug

    async def room(self) -> Room:
        return self.free_room

    # Filesystems

    async def probe(self, disk: Disk) -> Probe:
        self._enter("probe")
        found = self._disk(disk).signature
        if found == "ambivalent":
            return Probe(result=Probed.AMBIVALENT)
        if not found:
            return Probe(result=Probed.NOTHING)
        return Probe(result=Probed.FOUND, kind=found, is_file_system=found in ("ext4", "xfs", "btrfs"))

    async def superblock(self, disk: Disk, fs_type: str) -> SuperBlock:
        self._enter("superblock")
        fake = self._disk(disk)
        if fake.signature != fs_type:
            raise FailedPrecondition(f"{disk.name} has no superblock of {fs_type}")
        return SuperBlock(fs_type=fake.signature, size_bytes=fake.spans or fake.shown.size_bytes)

    async def make(self, disk: Disk, fs_type: str, *, options: tuple[str, ...] = ()) -> None:
        self._enter("make")
        self.calls.append(" ".join((f"make {fs_type} on {disk.name}", *options)))
        content = self._disk(disk).content
        if not content[-MIB:].startswith(b"MARK "):
            self.unmarked_formats.append(disk.name)
        content[:-MIB] = bytes(len(content) - MIB)  # of what was there nothing can be found any more
        self._disk(disk).sign(fs_type)
        self._disk(disk).spans = disk.size_bytes
        self._leave("make")

    async def wipe(self, disk: Disk) -> None:
        self._enter("wipe")
        self.calls.append(f"wipe {disk.name}")
        self._disk(disk).sign("")

    async def check(self, disk: Disk, fs_type: str) -> None:
        self._enter("check")
        self.calls.append(f"check {fs_type} on {disk.name}")

    # Resizing

    async def reread_size(self, disk: Disk) -> None:
        self._enter("reread_size")
        self.calls.append(f"reread size of {disk.name}")

    async def grow(self, disk: Disk, fs_type: str, *, mount_point: str) -> None:
        self._enter("grow")
        self.calls.append(f"grow {fs_type} on {disk.name} at {mount_point}")
        self._disk(disk).spans = disk.size_bytes

    # Mounts

    async def table(self) -> MountTable:
        self._enter("table")
        return MountTable(tuple(self.mounts))

    async def mount(self, *, device_path: str, target: str, fs_type: str, options: tuple[str, ...]) -> None:
        self._enter("mount")
        self.calls.append(f"mount {device_path} on {target} with {','.join(options) or 'nothing'}")
        disk = next(disk for disk in self.disks.values() if disk.shown.path == device_path)
        if disk.signature != fs_type:
            raise Internal(f"wrong fs type on {device_path}")
        own = ["ro" if "ro" in options else "rw", *mount_options.per_mount(options)]
        entry = self._entry(disk.shown.number, target, fs_type=fs_type, options=own)
        shared = [f"{key}={value}" for key, value in selinux.contexts(options).items() if self.selinux_is_on]
        self.mounts.append(replace(entry, super_options=frozenset((*entry.super_options, *shared))))

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
        self._enter("device_at")
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

    def look(self, mounted: MountEntry) -> asyncio.Future[Finding]:
        self.calls.append(f"look at {mounted.mount_point}")
        look: asyncio.Future[Finding] = asyncio.get_running_loop().create_future()
        if mounted.mount_point in self.hanging:
            self.hanging[mounted.mount_point].append(look)
        else:
            look.set_result(self._finding(mounted))
        return look

    def answer(self, path: str) -> None:
        """What hung at the path goes on, and every look at it ends."""
        mounted = next(entry for entry in reversed(self.mounts) if entry.mount_point == path)
        for look in self.hanging.pop(path):
            look.set_result(self._finding(mounted))

    def _finding(self, mounted: MountEntry) -> Finding:
        raw = self.disks.get(mounted.root.rpartition("/")[2])
        figures = FILLED if raw is None else raw.shown.size_bytes
        return Finding(figures=figures, ailments=tuple(self.ailments.get(mounted.mount_point, ())))

    # Records

    async def remember(self, record: Record) -> None:
        self._enter("remember")
        self.records[record.volume_id] = record

    async def recall(self, volume_id: str) -> Record | None:
        self._enter("recall")
        return self.records.get(volume_id)

    async def known(self) -> tuple[Record, ...]:
        self._enter("known")
        return tuple(self.records.values())

    # Trimmer

    async def trim(self, path: str) -> int | None:
        self._enter("trim")
        self.calls.append(f"trim {path}")
        if path in self.slow_to_trim:
            try:
                await asyncio.Event().wait()
            finally:
                self.calls.append(f"trim of {path} ended")
        return 4096

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
