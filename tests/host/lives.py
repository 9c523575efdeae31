"""A volume's life on one node, as kubelet drives it: a list of calls, and what a pod does between them.

A life has two halves: in the first the disk is blank and a pod writes, in the second another pod finds what was
written. Each call can be sent again by itself, so a life can be cut off anywhere and gone on with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from tests.host.machine import MIB, Machine, PluggedDisk

CALL_SECONDS = 60.0
CAP_SYS_RESOURCE = 24
"""linux/capability.h."""
PATTERN = bytes(range(256)) * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of volume: an empty ``fs_type`` is a raw block volume."""

    fs_type: str
    size: int
    grown: int

    @property
    def name(self) -> str:
        return self.fs_type or "block"


KINDS = (
    Kind(fs_type="ext4", size=32 * MIB, grown=48 * MIB),
    Kind(fs_type="xfs", size=320 * MIB, grown=352 * MIB),
    Kind(fs_type="btrfs", size=256 * MIB, grown=320 * MIB),
    Kind(fs_type="", size=8 * MIB, grown=12 * MIB),
)


class Do(Enum):
    """A call, or something that happens between calls."""

    STAGE = "NodeStageVolume"
    PUBLISH = "NodePublishVolume"
    PUBLISH_READ_ONLY = "NodePublishVolume read-only"
    WRITE = "a pod writes"
    GROW_DISK = "the disk grows"
    EXPAND = "NodeExpandVolume"
    STATS = "NodeGetVolumeStats"
    UNPUBLISH = "NodeUnpublishVolume"
    UNPUBLISH_READ_ONLY = "NodeUnpublishVolume read-only"
    UNSTAGE = "NodeUnstageVolume"
    FIND = "a pod finds what was written"

    @property
    def is_call(self) -> bool:
        """Whether the plug-in does it."""
        return self not in (Do.WRITE, Do.GROW_DISK, Do.FIND)


SECOND_HALF = (Do.STAGE, Do.PUBLISH, Do.WRITE, Do.FIND, Do.UNPUBLISH, Do.UNSTAGE)
UNDO = (Do.UNPUBLISH, Do.UNPUBLISH_READ_ONLY, Do.UNSTAGE)


def may_grow(kind: Kind) -> bool:
    """Whether we may grow it while it is mounted: the kernel permits it for ext4 with CAP_SYS_RESOURCE only."""
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return kind.fs_type != "ext4" or bool(effective >> CAP_SYS_RESOURCE & 1)


def life(kind: Kind, *, expands: bool) -> tuple[Do, ...]:
    """Everything that can happen to a volume of this kind."""
    reader = kind.fs_type != ""  # a writable raw device cannot be shown read-only
    return (
        *(Do.STAGE, Do.PUBLISH, Do.WRITE),
        *((Do.PUBLISH_READ_ONLY,) if reader else ()),
        *((Do.GROW_DISK, Do.EXPAND) if expands and may_grow(kind) else ()),
        *(Do.FIND, Do.UNPUBLISH),
        *((Do.UNPUBLISH_READ_ONLY,) if reader else ()),
        Do.UNSTAGE,
        *SECOND_HALF,
    )


class LivingVolume:
    """One volume on a disk of its own."""

    def __init__(self, machine: Machine, kind: Kind, *, number: int) -> None:
        self.machine = machine
        self.kind = kind
        self.volume_id = f"pvc-{number}"
        self.serial = f"{number:020x}"
        self.disk: PluggedDisk = machine.plug(f"vd{number}", serial=self.serial, size=kind.size)
        self.staging = machine.folder(f"staging/{self.volume_id}")
        pods = machine.folder(f"pods/{self.volume_id}")
        self.target, self.reader = pods / "a", pods / "b"
        self.written = False
        self.content = Content.NONE

    async def do(self, what: Do, node: csi.NodeStub) -> None:
        """Does it.

        Raises:
            AssertionError: the data is not what was written.
            GRPCError, OSError, StreamTerminatedError: what became of the call.
        """
        match what:
            case Do.STAGE:
                await self._stage(node)
            case Do.PUBLISH:
                await self._publish(node, self.target)
            case Do.PUBLISH_READ_ONLY:
                await self._publish(node, self.reader, read_only=True)
            case Do.EXPAND:
                await self._expand(node)
            case Do.STATS:
                await self._stats(node)
            case Do.UNPUBLISH:
                await self._unpublish(node, self.target)
            case Do.UNPUBLISH_READ_ONLY:
                await self._unpublish(node, self.reader)
            case Do.UNSTAGE:
                await self._unstage(node)
            case Do.WRITE | Do.FIND | Do.GROW_DISK:
                self._happen(what)

    def forget(self) -> None:
        """As on another node: no record of the volume here, and the controller says that it was attached before."""
        self.content = Content.USED
        for record in (self.machine.state / "volumes").glob("*.json"):
            if record.stem == self.volume_id:
                record.unlink()

    def leave(self) -> None:
        """The disk is unplugged, and its image deleted."""
        self.machine.unplug(self.disk)
        self.disk.image.unlink()

    async def _stage(self, node: csi.NodeStub) -> None:
        request = csi.NodeStageVolumeRequest(
            volume_id=self.volume_id,
            staging_target_path=str(self.staging),
            volume_capability=self._capability(),
            publish_context=self._context(),
        )
        await node.node_stage_volume(request, timeout=CALL_SECONDS)

    async def _publish(self, node: csi.NodeStub, target: Path, *, read_only: bool = False) -> None:
        request = csi.NodePublishVolumeRequest(
            volume_id=self.volume_id,
            staging_target_path=str(self.staging),
            target_path=str(target),
            volume_capability=self._capability(),
            publish_context=self._context(),
            readonly=read_only,
        )
        await node.node_publish_volume(request, timeout=CALL_SECONDS)

    async def _expand(self, node: csi.NodeStub) -> None:
        request = csi.NodeExpandVolumeRequest(
            volume_id=self.volume_id,
            volume_path=str(self.target),
            staging_target_path=str(self.staging),
            volume_capability=self._capability(),
            capacity_range=csi.CapacityRange(required_bytes=self.kind.grown),
        )
        await node.node_expand_volume(request, timeout=CALL_SECONDS)

    async def _stats(self, node: csi.NodeStub) -> None:
        request = csi.NodeGetVolumeStatsRequest(
            volume_id=self.volume_id, volume_path=str(self.target), staging_target_path=str(self.staging)
        )
        await node.node_get_volume_stats(request, timeout=CALL_SECONDS)

    async def _unpublish(self, node: csi.NodeStub, target: Path) -> None:
        request = csi.NodeUnpublishVolumeRequest(volume_id=self.volume_id, target_path=str(target))
        await node.node_unpublish_volume(request, timeout=CALL_SECONDS)

    async def _unstage(self, node: csi.NodeStub) -> None:
        request = csi.NodeUnstageVolumeRequest(volume_id=self.volume_id, staging_target_path=str(self.staging))
        await node.node_unstage_volume(request, timeout=CALL_SECONDS)
        self.content = Content.USED

    def _capability(self) -> csi.VolumeCapability:
        mode = csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_MULTI_WRITER)
        if self.kind.fs_type:
            mount = csi.VolumeCapabilityMountVolume(fs_type=self.kind.fs_type)
            return csi.VolumeCapability(mount=mount, access_mode=mode)
        return csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume(), access_mode=mode)

    def _context(self) -> dict[str, str]:
        return PublishContext(
            serial=self.serial, bus=Bus.VIRTIO, size_bytes=self.kind.size, content=self.content
        ).to_map()

    def _happen(self, what: Do) -> None:
        if what is Do.WRITE:
            self._write()
        elif what is Do.FIND:
            self._find()
        else:
            self.machine.grow(self.disk, self.kind.grown)

    @property
    def _bytes(self) -> bytes:
        return self.volume_id.encode().ljust(32, b".") + PATTERN

    def _data(self) -> Path:
        return self.target / "data" if self.kind.fs_type else self.target

    def _write(self) -> None:
        """Once in a life; flushed, as a database does."""
        if self.written:
            return
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if self.kind.fs_type else 0)
        fd = os.open(self._data(), flags, 0o600)
        try:
            os.write(fd, self._bytes)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.written = True

    def _find(self) -> None:
        with self._data().open("rb") as data:
            assert data.read(len(self._bytes)) == self._bytes, f"the data of {self.volume_id} is not what was written"


def formats(calls: Iterable[list[str]], disk: PluggedDisk) -> list[str]:
    """What is wrong with the formats of the disk: without our mark on it, or after an attempt to mount it."""
    wrong, mounted = [], False
    for program, *arguments in calls:
        if str(disk.path) not in arguments:
            continue
        if program == "mount" and "bind" not in arguments:
            mounted = True
        if program.startswith("mkfs"):
            wrong += ["a format of a disk that had been mounted"] if mounted else []
            wrong += ["a format without our mark"] if arguments[-1] != "marked" else []
    return wrong


def left_behind(machine: Machine) -> list[str]:
    """Mounts, apart from kubelet's folder itself."""
    return [point for point in machine.mounts_below() if point != str(machine.kubelet)]
