"""Volumes as the host tier describes them to the node's operations."""

from __future__ import annotations

from pathlib import Path

from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from kubevirt_csi.operations.publishing import Publication
from kubevirt_csi.operations.staging import Volume
from tests.host.conftest import Plugin
from tests.host.machine import MIB

SERIAL = "0123456789abcdef0123"
SMALLEST_XFS = 320 * MIB


class PodVolume:
    """One volume on one machine, with the paths that kubelet would use."""

    def __init__(
        self,
        plugin: Plugin,
        *,
        volume_id: str = "pvc-1",
        serial: str = SERIAL,
        fs_type: str = "",
        flags: tuple[str, ...] = (),
        block: bool = False,
        mode: AccessMode = AccessMode.SINGLE_NODE_MULTI_WRITER,
        content: Content = Content.NONE,
        size: int = 0,
        override: str | None = None,
        mkfs_options: str = "",
    ) -> None:
        self.plugin = plugin
        self.staging = plugin.machine.folder(f"staging/{volume_id}")
        self.pods = plugin.machine.folder(f"pods/{volume_id}")
        self.described = Volume(
            volume_id=volume_id,
            staging_path=str(self.staging),
            capability=Capability(access=Block() if block else Mount(fs_type=fs_type, flags=flags), mode=mode),
            context=PublishContext(
                serial=serial,
                bus=Bus.VIRTIO,
                size_bytes=size,
                content=content,
                override=override,
                mkfs_options=mkfs_options,
            ),
        )

    async def stage(self) -> None:
        await self.plugin.staging.stage(self.described)

    async def unstage(self) -> None:
        await self.plugin.unstaging.unstage(volume_id=self.described.volume_id, staging_path=str(self.staging))

    async def publish(self, pod: str, *, read_only: bool = False) -> Path:
        target = self.pods / pod
        await self.plugin.publishing.publish(
            Publication(volume=self.described, target_path=str(target), read_only=read_only)
        )
        return target

    async def unpublish(self, pod: str) -> None:
        await self.plugin.publishing.unpublish(volume_id=self.described.volume_id, target_path=str(self.pods / pod))
