"""Volumes as the host tier describes them to the node's operations."""

from __future__ import annotations

from pathlib import Path

from kubevirt_csi.domain.access import AccessMode
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.operations.publishing import Publication
from tests.fakes.node import SERIAL, volume
from tests.host.conftest import Plugin
from tests.host.machine import MIB

__all__ = ["SERIAL", "SMALLEST_XFS", "PodVolume"]

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
        self.described = volume(
            volume_id=volume_id,
            staging=str(self.staging),
            serial=serial,
            fs_type=fs_type,
            flags=flags,
            block=block,
            mode=mode,
            content=content,
            size=size,
            override=override,
            mkfs_options=mkfs_options,
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
