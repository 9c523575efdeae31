"""Sequences of node calls, sent in the same way to any host: the fake one, or a real kernel with loop devices.

A host is one object that implements every port of ``ports.host``. The plug-in on it can be killed before any change it
makes (``Fuse``) and started again. Answers come back as code names, and the mount table in a form that is the same on
both hosts, so that two runs of one sequence can be compared.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol, cast

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from kubevirt_csi.errors import DriverError
from kubevirt_csi.services.node import NodeService
from tests.fakes.host import MIB, FakeHost
from tests.fakes.node import FakeNode

CHANGES = frozenset(
    {
        "bind",
        "check",
        "erase_mark",
        "flush",
        "grow",
        "make",
        "make_directory",
        "make_file",
        "mount",
        "remember",
        "remove",
        "reread_size",
        "unmount",
        "wipe",
        "write_mark",
    }
)
"""The methods of the ports that change something; before each of them the plug-in can be killed."""
_Mode = csi.VolumeCapabilityAccessModeMode


class Killed(BaseException):
    """The plug-in is dead. No operation catches it, and nothing that one does at its end has an effect any more."""


class Fuse:
    """A host as a plug-in sees it that dies before a chosen change."""

    def __init__(self, host: Any, *, parent: Fuse | None = None) -> None:
        self._host = host
        self._parent = parent
        self._at = self._changes = 0
        self._blown = False

    def arm(self, at: int) -> None:
        """The plug-in dies before the change with this number, counted from now on and from 1; 0 is never."""
        self._at, self._changes = at, 0

    def burn(self, name: str) -> None:
        """Counts the method if it is a change; whoever calls a host whose plug-in is dead is dead too."""
        if self._parent is not None:
            self._parent.burn(name)
            return
        self._changes += name in CHANGES
        self._blown = self._blown or (name in CHANGES and self._changes == self._at)
        if self._blown:
            raise Killed

    @asynccontextmanager
    async def opened(self, disk: Disk) -> AsyncIterator[Fuse]:
        """The opened disk behind the same fuse."""
        self.burn("opened")
        async with self._host.opened(disk) as device:
            yield Fuse(device, parent=self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._host, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            self.burn(name)
            return await found(*arguments, **named)

        return call


class Do(Enum):
    """The calls."""

    STAGE = "stage"
    PUBLISH = "publish"
    UNPUBLISH = "unpublish"
    UNSTAGE = "unstage"
    EXPAND = "expand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call for one volume.

    ``target`` names a pod, for EXPAND also "" for the staging path. ``fs_type`` is what the capability asks for.
    ``grows`` lets the disk become larger before the call. ``kill_at`` is the change before which the plug-in dies.
    """

    do: Do
    volume: int
    target: str = ""
    read_only: bool = False
    fs_type: str = ""
    grows: bool = False
    kill_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a volume is for as long as it lives."""

    name: str
    block: bool = False
    mode: _Mode = _Mode.SINGLE_NODE_MULTI_WRITER


KINDS = (
    Kind(name="shared"),
    Kind(name="exclusive", mode=_Mode.SINGLE_NODE_SINGLE_WRITER),
    Kind(name="block", block=True),
)
TARGETS = ("a", "b")


@dataclass(frozen=True, slots=True, order=True)
class Mounted:
    """A mount as both hosts show it: where, which volume's, what of it, and whether this mount can be written."""

    path: str
    volume: str
    what: str
    read_only: bool


class World(Protocol):
    """A host with one disk for each kind of volume."""

    @property
    def host(self) -> Any:
        """Implements every port."""

    @property
    def root(self) -> str:
        """The folder in which staging and target paths are."""

    def disk(self, volume: int) -> Disk:
        """The volume's disk as it is now."""

    def grow(self, volume: int) -> None:
        """Makes its disk larger."""


def serial(volume: int) -> str:
    """Of the volume's disk."""
    return f"{volume:020x}"


class FakeWorld:
    """A fake host with a disk of this size for each volume."""

    def __init__(self, *, size: int) -> None:
        self.host = FakeHost()
        self.root = "/kubelet"
        for volume in range(len(KINDS)):
            self.host.plug(f"vd{volume}", serial=serial(volume), size=size)

    def disk(self, volume: int) -> Disk:
        return self.host.disks[f"vd{volume}"].shown

    def grow(self, volume: int) -> None:
        self.host.resize(f"vd{volume}", self.disk(volume).size_bytes + MIB)


class Driver:
    """Sends steps to the plug-in on a world, and starts the plug-in again after each of its deaths."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.restart()

    def restart(self) -> None:
        """A new process: nothing is remembered but what the host holds."""
        self.fuse = Fuse(self.world.host)
        self.service = _service(self.fuse)

    async def send(self, step: Step) -> str:
        """The name of the code that the call was answered with; "killed" when the plug-in died of it."""
        if step.grows:
            self.world.grow(step.volume)
        self.fuse.arm(step.kill_at)
        try:
            await self._call(step)
        except DriverError as error:
            return error.status.name
        except Killed:
            self.restart()
            return "killed"
        return "OK"

    async def mounts(self) -> list[Mounted]:
        """The mount table below the world's folder, in the order of mounting."""
        table = await self.world.host.table()
        return [await self._mounted(entry) for entry in table.entries if entry.mount_point.startswith(self.world.root)]

    def staging(self, volume: int) -> str:
        """Its staging path."""
        return f"{self.world.root}/staging-{volume}"

    def target(self, volume: int, pod: str) -> str:
        """Its target path for a pod."""
        return f"{self.world.root}/{pod}-{volume}"

    async def _call(self, step: Step) -> None:
        match step.do:
            case Do.STAGE:
                await self.service.node_stage_volume(self._stage(step))
            case Do.PUBLISH:
                await self.service.node_publish_volume(self._publish(step))
            case Do.UNPUBLISH:
                path = self.target(step.volume, step.target)
                await self.service.node_unpublish_volume(
                    csi.NodeUnpublishVolumeRequest(volume_id=_id(step), target_path=path)
                )
            case Do.UNSTAGE:
                path = self.staging(step.volume)
                await self.service.node_unstage_volume(
                    csi.NodeUnstageVolumeRequest(volume_id=_id(step), staging_target_path=path)
                )
            case Do.EXPAND:
                await self.service.node_expand_volume(self._expand(step))

    def _stage(self, step: Step) -> csi.NodeStageVolumeRequest:
        return csi.NodeStageVolumeRequest(
            volume_id=_id(step),
            staging_target_path=self.staging(step.volume),
            volume_capability=_capability(step),
            publish_context=self._context(step),
        )

    def _publish(self, step: Step) -> csi.NodePublishVolumeRequest:
        return csi.NodePublishVolumeRequest(
            volume_id=_id(step),
            staging_target_path=self.staging(step.volume),
            target_path=self.target(step.volume, step.target),
            volume_capability=_capability(step),
            publish_context=self._context(step),
            readonly=step.read_only,
        )

    def _expand(self, step: Step) -> csi.NodeExpandVolumeRequest:
        path = self.target(step.volume, step.target) if step.target else self.staging(step.volume)
        required = self.world.disk(step.volume).size_bytes
        return csi.NodeExpandVolumeRequest(
            volume_id=_id(step), volume_path=path, capacity_range=csi.CapacityRange(required_bytes=required)
        )

    def _context(self, step: Step) -> dict[str, str]:
        return PublishContext(serial=serial(step.volume), bus=Bus.VIRTIO, size_bytes=0, content=Content.NONE).to_map()

    async def _mounted(self, entry: MountEntry) -> Mounted:
        node = await self.world.host.device_at(entry.mount_point)
        number = node or entry.device
        owners = [kind.name for volume, kind in enumerate(KINDS) if self.world.disk(volume).number == number]
        return Mounted(
            path=entry.mount_point.removeprefix(self.world.root),
            volume=", ".join(owners) or "nobody's",
            what="device" if node is not None else entry.fs_type,
            read_only="ro" in entry.options,
        )


def plain(step: Step) -> Step:
    """The same without a death."""
    return replace(step, kill_at=0, grows=False)


def _id(step: Step) -> str:
    return f"pvc-{KINDS[step.volume].name}"


def _capability(step: Step) -> csi.VolumeCapability:
    kind = KINDS[step.volume]
    mode = csi.VolumeCapabilityAccessMode(mode=kind.mode)
    if kind.block:
        return csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume(), access_mode=mode)
    return csi.VolumeCapability(mount=csi.VolumeCapabilityMountVolume(fs_type=step.fs_type), access_mode=mode)


def _service(fuse: Fuse) -> NodeService:
    return FakeNode(cast("FakeHost", fuse), disk_wait_seconds=1.0).service()
