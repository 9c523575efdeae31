"""The node's operations on a fake host, and the volumes that tests stage on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from kubevirt_csi.operations.formatting import Formatting
from kubevirt_csi.operations.growing import Growing
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.limiting import VolumeLimit
from kubevirt_csi.operations.publishing import Publication, Publishing
from kubevirt_csi.operations.staging import Staging, Volume
from kubevirt_csi.operations.trimming import Trimming
from kubevirt_csi.operations.unstaging import Unstaging
from kubevirt_csi.operations.usage import VolumeUsage
from tests.fakes.host import MIB, FakeHost

SERIAL = "0123456789abcdef0123"
STAGING = "/kubelet/staging"


def volume(
    *,
    volume_id: str = "pvc-1",
    serial: str = SERIAL,
    fs_type: str = "",
    flags: tuple[str, ...] = (),
    mode: AccessMode = AccessMode.SINGLE_NODE_MULTI_WRITER,
    block: bool = False,
    content: Content = Content.NONE,
    size: int = 8 * MIB,
    override: str | None = None,
    mkfs_options: str = "",
) -> Volume:
    """A volume as kubelet describes it."""
    return Volume(
        volume_id=volume_id,
        staging_path=STAGING,
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


def publication(of: Volume, target: str = "/kubelet/pods/a", *, read_only: bool = False) -> Publication:
    """A pod that wants to see the volume."""
    return Publication(volume=of, target_path=target, read_only=read_only)


@dataclass
class FakeNode:
    """One start of the plug-in on a host; another one on the same host is a restart."""

    host: FakeHost = field(default_factory=FakeHost)
    disk_wait_seconds: float = 30.0
    now: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __post_init__(self) -> None:
        host = self.host
        formatting = Formatting(filesystems=host, records=host)
        self.health = VolumeHealth(now=lambda: self.now)
        self.growing = Growing(
            disks=host,
            filesystems=host,
            mounts=host,
            places=host,
            records=host,
            resizing=host,
            health=self.health,
        )
        self.trimming = Trimming(disks=host, mounts=host, records=host, trimmer=host, chance=lambda: 0.5)
        self.staging = Staging(
            disks=host,
            formatting=formatting,
            growing=self.growing,
            mounts=host,
            places=host,
            records=host,
            disk_wait_seconds=self.disk_wait_seconds,
        )
        self.unstaging = Unstaging(
            disks=host, formatting=formatting, mounts=host, places=host, records=host, trimming=self.trimming
        )
        self.publishing = Publishing(
            staging=self.staging, trimming=self.trimming, disks=host, mounts=host, places=host, records=host
        )
        self.limit = VolumeLimit(disks=host, hotplug=host, limit="auto")
        self.usage = VolumeUsage(mounts=host, places=host, usage=host, health=self.health, records=host)

    async def unstage(self, volume_id: str = "pvc-1") -> None:
        await self.unstaging.unstage(volume_id=volume_id, staging_path=STAGING)

    async def unpublish(self, target: str = "/kubelet/pods/a", volume_id: str = "pvc-1") -> None:
        await self.publishing.unpublish(volume_id=volume_id, target_path=target)
