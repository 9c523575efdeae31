"""A volume as kubelet asks for it: the node RPCs with the paths that kubelet uses, over the plugin's real socket."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.serials import new_serial
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from tests.guest.node import KUBELET, GuestNode

MIB = 2**20
CALL_SECONDS = 120.0
_MODE = csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_MULTI_WRITER


def _volume_id() -> str:
    return f"pvc-{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume of the guest's node; ``fs_type`` None is a raw block volume."""

    node: GuestNode
    bus: Bus = Bus.SCSI
    serial: str = field(default_factory=new_serial)
    fs_type: str | None = "ext4"
    size: int = 64 * MIB
    content: Content = Content.NONE
    id: str = field(default_factory=_volume_id)
    flags: tuple[str, ...] = ()

    @property
    def staging(self) -> Path:
        """kubelet's path for it; the same for every pod."""
        kind = "kubernetes.io/csi/csi.kubevirt.io" if self.fs_type else "kubernetes.io/csi/volumeDevices/staging"
        return KUBELET / "plugins" / kind / self.id / "globalmount"

    def target(self, pod: str) -> Path:
        """kubelet's path for it in the pod."""
        if self.fs_type:
            return KUBELET / "pods" / pod / "volumes/kubernetes.io~csi" / self.id / "mount"
        return KUBELET / "plugins/kubernetes.io/csi/volumeDevices/publish" / self.id / pod

    async def stage(self, *, seconds: float = CALL_SECONDS) -> None:
        await self.node.sh(f"mkdir -p {self.staging}")
        async with self.node.stub() as stub:
            await self._stage(stub, seconds=seconds)

    @asynccontextmanager
    async def being_staged(self) -> AsyncIterator[asyncio.Task[None]]:
        """Stage is under way during the block, and has ended after it."""
        await self.node.sh(f"mkdir -p {self.staging}")
        async with self.node.begun(self._stage) as call:
            yield call

    async def publish(self, pod: str = "a", *, read_only: bool = False, seconds: float = CALL_SECONDS) -> Path:
        target = self.target(pod)
        await self.node.sh(f"mkdir -p {target.parent}")
        async with self.node.stub() as stub:
            await stub.node_publish_volume(
                csi.NodePublishVolumeRequest(
                    volume_id=self.id,
                    staging_target_path=str(self.staging),
                    target_path=str(target),
                    volume_capability=self._capability(),
                    publish_context=self._context(),
                    readonly=read_only,
                ),
                timeout=seconds,
            )
        return target

    async def unpublish(self, pod: str = "a", *, seconds: float = CALL_SECONDS) -> None:
        async with self.node.stub() as stub:
            await stub.node_unpublish_volume(
                csi.NodeUnpublishVolumeRequest(volume_id=self.id, target_path=str(self.target(pod))), timeout=seconds
            )

    async def unstage(self, *, seconds: float = CALL_SECONDS) -> None:
        async with self.node.stub() as stub:
            await self._unstage(stub, seconds=seconds)

    @asynccontextmanager
    async def being_unstaged(self) -> AsyncIterator[asyncio.Task[None]]:
        """Unstage is under way during the block, and has ended after it."""
        async with self.node.begun(self._unstage) as call:
            yield call

    async def expand(self, size: int, *, seconds: float = CALL_SECONDS) -> int:
        """Asks for so many bytes; returns the bytes that the plugin says the disk has now."""
        async with self.node.stub() as stub:
            return await self._expand(stub, size, seconds=seconds)

    @asynccontextmanager
    async def being_expanded(self, size: int) -> AsyncIterator[asyncio.Task[int]]:
        """Expand is under way during the block, and has ended after it."""
        async with self.node.begun(lambda stub: self._expand(stub, size)) as call:
            yield call

    async def stats(self, pod: str = "a", *, seconds: float = 10.0) -> csi.NodeGetVolumeStatsResponse:
        async with self.node.stub() as stub:
            return await stub.node_get_volume_stats(
                csi.NodeGetVolumeStatsRequest(
                    volume_id=self.id, volume_path=str(self.target(pod)), staging_target_path=str(self.staging)
                ),
                timeout=seconds,
            )

    async def write(self, text: str, pod: str = "a") -> None:
        """What a pod does: writes, and asks the kernel to have it on the disk."""
        path = self.target(pod)
        if self.fs_type:
            await self.node.sh(f"echo {text} | dd of={path}/data conv=fsync 2>/dev/null")
        else:
            await self.node.sh(f"echo {text} | dd of={path} bs=4k seek=8 conv=sync,fsync 2>/dev/null")

    async def read(self, pod: str = "a") -> str:
        """What a pod finds."""
        path = self.target(pod)
        if self.fs_type:
            return (await self.node.sh(f"cat {path}/data")).strip()
        return (await self.node.sh(f"dd if={path} bs=4k skip=8 count=1 2>/dev/null | head -n 1")).strip()

    async def _stage(self, stub: csi.NodeStub, *, seconds: float = CALL_SECONDS) -> None:
        await stub.node_stage_volume(
            csi.NodeStageVolumeRequest(
                volume_id=self.id,
                staging_target_path=str(self.staging),
                volume_capability=self._capability(),
                publish_context=self._context(),
            ),
            timeout=seconds,
        )

    async def _unstage(self, stub: csi.NodeStub, *, seconds: float = CALL_SECONDS) -> None:
        await stub.node_unstage_volume(
            csi.NodeUnstageVolumeRequest(volume_id=self.id, staging_target_path=str(self.staging)), timeout=seconds
        )

    async def _expand(self, stub: csi.NodeStub, size: int, *, seconds: float = CALL_SECONDS) -> int:
        answer = await stub.node_expand_volume(
            csi.NodeExpandVolumeRequest(
                volume_id=self.id,
                volume_path=str(self.target("a")),
                staging_target_path=str(self.staging),
                capacity_range=csi.CapacityRange(required_bytes=size),
                volume_capability=self._capability(),
            ),
            timeout=seconds,
        )
        return answer.capacity_bytes

    def _capability(self) -> csi.VolumeCapability:
        mode = csi.VolumeCapabilityAccessMode(mode=_MODE)
        if self.fs_type is None:
            return csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume(), access_mode=mode)
        mount = csi.VolumeCapabilityMountVolume(fs_type=self.fs_type, mount_flags=list(self.flags))
        return csi.VolumeCapability(mount=mount, access_mode=mode)

    def _context(self) -> dict[str, str]:
        context = PublishContext(serial=self.serial, bus=self.bus, size_bytes=self.size, content=self.content)
        return context.to_map()
