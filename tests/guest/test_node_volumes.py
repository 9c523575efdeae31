"""A volume's life on the disks that KubeVirt makes: virtio and scsi, each file system, and raw."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

import pytest

from kubevirt_csi.domain.serials import new_serial
from kubevirt_csi.domain.volumes import Bus, Content
from tests.guest.disks import Disks
from tests.guest.node import GuestNode
from tests.guest.volumes import MIB, Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a volume is, and the buses that it is plugged into one after the other."""

    fs_type: str | None
    first: Bus
    then: Bus
    serial: str = field(default_factory=new_serial)


SMALLEST = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 128 * MIB, None: 16 * MIB}


KINDS = [
    Kind(fs_type="ext4", first=Bus.SCSI, then=Bus.VIRTIO),
    # The predecessor's serials, of which virtio shows 20 characters.
    Kind(fs_type="xfs", first=Bus.VIRTIO, then=Bus.SCSI, serial=str(uuid.uuid4())),
    Kind(fs_type="btrfs", first=Bus.SCSI, then=Bus.VIRTIO),
    Kind(fs_type=None, first=Bus.VIRTIO, then=Bus.SCSI, serial=str(uuid.uuid4())),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.fs_type or "raw"))
async def test_what_a_pod_wrote_is_found_again_on_the_other_bus(node: GuestNode, disks: Disks, kind: Kind) -> None:
    fs_type = kind.fs_type
    volume = Volume(node=node, bus=kind.first, fs_type=fs_type, size=SMALLEST[fs_type], serial=kind.serial)
    disk = await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("written-by-a-pod")
    await volume.unpublish()
    await volume.unstage()
    assert await node.mount_points() == []
    assert await node.made(disk.device) == ([f"mkfs.{fs_type}"] if fs_type else [])
    await disks.unplug(disk)

    moved = replace(volume, bus=kind.then, content=Content.USED)
    again = await disks.plug(moved, image=disk.image)
    await moved.stage()
    await moved.publish("b")
    assert await moved.read("b") == "written-by-a-pod"
    await moved.unpublish("b")
    await moved.unstage()
    assert await node.made(again.device) == []
