"""How a volume is to be used: CSI access modes and the two access types, mount and raw block.

Which combinations the driver serves is decided here for CreateVolume, ValidateVolumeCapabilities, publish and stage
alike, so that no call accepts what another refuses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from kubevirt_csi.errors import InvalidArgument

DEFAULT_FILE_SYSTEM = "ext4"
FILE_SYSTEMS = ("ext4", "xfs", "btrfs")


class AccessMode(Enum):
    """The access modes of the CSI specification, by their names there."""

    SINGLE_NODE_WRITER = "SINGLE_NODE_WRITER"
    SINGLE_NODE_READER_ONLY = "SINGLE_NODE_READER_ONLY"
    MULTI_NODE_READER_ONLY = "MULTI_NODE_READER_ONLY"
    MULTI_NODE_SINGLE_WRITER = "MULTI_NODE_SINGLE_WRITER"
    MULTI_NODE_MULTI_WRITER = "MULTI_NODE_MULTI_WRITER"
    SINGLE_NODE_SINGLE_WRITER = "SINGLE_NODE_SINGLE_WRITER"
    SINGLE_NODE_MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"

    @property
    def multi_node(self) -> bool:
        """Whether two nodes may hold the volume at once."""
        return self.value.startswith("MULTI_NODE_")

    @property
    def read_only(self) -> bool:
        """Whether nobody may write."""
        return self.value.endswith("_READER_ONLY")

    @property
    def family(self) -> str:
        """What two requests for the same volume must have in common.

        The three single-node writer modes are one family: Kubernetes sends another one of them for the same claim
        depending on what the driver advertises.
        """
        single_writers = (
            AccessMode.SINGLE_NODE_WRITER,
            AccessMode.SINGLE_NODE_SINGLE_WRITER,
            AccessMode.SINGLE_NODE_MULTI_WRITER,
        )
        return "SINGLE_NODE_WRITERS" if self in single_writers else self.value


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system: its type (empty = the driver's choice) and the class's mount options, one in each flag."""

    fs_type: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """The raw device."""


@dataclass(frozen=True, slots=True)
class Capability:
    """One requested way to use a volume."""

    access: Mount | Block
    mode: AccessMode

    @property
    def fs_type(self) -> str:
        """The file system to make, ``ext4`` when none was asked for.

        Raises:
            InvalidArgument: the capability is raw block.
        """
        if isinstance(self.access, Block):
            raise InvalidArgument("a raw block volume has no file system type")
        return self.access.fs_type or DEFAULT_FILE_SYSTEM


def unsupported(capability: Capability) -> str | None:
    """Says why the driver does not serve the capability, or None when it does."""
    if capability.mode is AccessMode.MULTI_NODE_MULTI_WRITER and isinstance(capability.access, Mount):
        return (
            "a file system cannot be written by several nodes (ReadWriteMany with volumeMode Filesystem); "
            "use volumeMode Block or ReadWriteOnce"
        )
    if capability.mode in (AccessMode.MULTI_NODE_READER_ONLY, AccessMode.MULTI_NODE_SINGLE_WRITER):
        return f"access mode {capability.mode.value} is not supported; use ReadWriteOnce, or ReadWriteMany with Block"
    if isinstance(capability.access, Mount) and capability.fs_type not in FILE_SYSTEMS:
        return f"file system type {capability.fs_type!r} is not supported; use one of {', '.join(FILE_SYSTEMS)}"
    return None


def require_supported(capabilities: Collection[Capability]) -> None:
    """Refuses a request that has no capability, or one that the driver does not serve.

    Raises:
        InvalidArgument: with the reason.
    """
    if not capabilities:
        raise InvalidArgument("volume_capabilities is empty: at least one capability is required")
    for capability in capabilities:
        reason = unsupported(capability)
        if reason is not None:
            raise InvalidArgument(reason)
