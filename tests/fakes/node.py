"""The node's operations on a fake host, and the volumes that tests stage on it."""

from __future__ import annotations

from datetime import UTC, datetime

from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.node import NodeOperations, Waits
from kubevirt_csi.operations.publishing import Publication
from kubevirt_csi.operations.staging import Volume
from kubevirt_csi.ports.host import Host
from kubevirt_csi.services.node import NodeService
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
    staging: str = STAGING,
) -> Volume:
    """A volume as kubelet describes it."""
    return Volume(
        volume_id=volume_id,
        staging_path=staging,
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


class FakeNode(NodeOperations):
    """One start of the plug-in on a host; another one on the same host is a restart."""

    def __init__(self, host: FakeHost | None = None, *, disk_wait_seconds: float = 30.0) -> None:
        self.host = host = host if host is not None else FakeHost()
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        ports = Host(
            disks=host,
            hotplug=host,
            filesystems=host,
            resizing=host,
            trimmer=host,
            mounts=host,
            places=host,
            usage=host,
            records=host,
        )
        health = VolumeHealth(now=lambda: self.now)
        super().__init__(ports, health=health, waits=Waits(disk=disk_wait_seconds), chance=lambda: 0.5)

    def service(self) -> NodeService:
        """The plug-in's CSI service."""
        return NodeService(node_id="ns/vm1", topology={}, operations=self)

    async def unstage(self, volume_id: str = "pvc-1") -> None:
        await self.unstaging.unstage(volume_id=volume_id, staging_path=STAGING)

    async def unpublish(self, target: str = "/kubelet/pods/a", volume_id: str = "pvc-1") -> None:
        await self.publishing.unpublish(volume_id=volume_id, target_path=target)
