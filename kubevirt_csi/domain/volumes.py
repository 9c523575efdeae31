"""What the two halves of the driver tell each other about a volume: bus, content state, publish and volume context.

The controller writes publish_context from infra objects only; the node plugin has no other source of truth. Keys are
part of the contract between versions: a node plugin of one release reads what a controller of another wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kubevirt_csi.errors import InvalidArgument

MKFS_OPTIONS = "mkfsOptions"
"""The StorageClass parameter, and the key in volume_context."""


class Bus(Enum):
    """The buses on which KubeVirt hot-plugs disks."""

    SCSI = "scsi"
    VIRTIO = "virtio"


class Content(Enum):
    """What may be on a volume, as recorded on the infra claim."""

    NONE = "none"
    """Never attached: may be formatted after the blank proof."""
    USED = "used"
    """Attached before, or unknown: may be formatted only after the whole device was read as zero."""
    SOURCE = "source"
    """Made from a snapshot or a clone: never formatted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishContext:
    """What ControllerPublishVolume tells the node about an attached disk.

    ``serial`` as in the VM's disk entry, ``size_bytes`` the least that the guest must see, ``override`` an operator's
    permission to format, when set. ``mkfs_options`` is the class's word on how to format; it travels in volume_context,
    and so does not come back from ``to_map``.
    """

    serial: str
    bus: Bus
    size_bytes: int
    content: Content
    override: str | None = None
    mkfs_options: str = ""

    def to_map(self) -> dict[str, str]:
        """The map as it travels in publish_context (at most 4 KiB, no secrets)."""
        context = {
            "serial": self.serial,
            "bus": self.bus.value,
            "size": str(self.size_bytes),
            "content": self.content.value,
        }
        return context | ({"override": self.override} if self.override else {})

    @classmethod
    def from_map(cls, publish_context: Mapping[str, str], volume_context: Mapping[str, str]) -> PublishContext:
        """Reads publish_context, or volume_context for an attachment that the predecessor made.

        Only an empty publish_context falls back, and then the content counts as used and the size as unknown (0).

        Raises:
            InvalidArgument: no serial, or a value that no controller writes.
        """
        if not publish_context:
            serial = volume_context.get("serial", "")
            bus = volume_context.get("bus", Bus.SCSI.value)
            found = {"serial": serial, "bus": bus, "size": "0", "content": Content.USED.value}
        else:
            found = dict(publish_context)
        if not found.get("serial"):
            raise InvalidArgument(
                "neither publish_context nor volume_context has the disk's serial, so no disk can be told to be this "
                "volume's; was the volume attached by another driver?"
            )
        try:
            return cls(
                serial=found["serial"],
                bus=Bus(found.get("bus", Bus.SCSI.value)),
                size_bytes=int(found.get("size", "0")),
                content=Content(found.get("content", Content.USED.value)),
                override=found.get("override") or None,
                mkfs_options=volume_context.get(MKFS_OPTIONS, ""),
            )
        except ValueError as error:
            raise InvalidArgument(f"publish_context is not one of this driver's: {error}") from error
