"""May this disk be formatted? The one decision that loses data when it is wrong.

It is made from facts that were read from the device itself, and from what both halves of the driver remember about the
volume. "No signature found" is never enough: blkid says the same about a blank disk, a disk that it could not read, and
an ext4 file system whose first block was damaged. So a disk counts as blank only when its first and last MiB, and all
places where a superblock has its copies, were read and are zero, and a volume that has been in use only when all of it
was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kubevirt_csi.domain.access import DEFAULT_FILE_SYSTEM, FILE_SYSTEMS
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mkfs import SMALLEST_BYTES
from kubevirt_csi.domain.telltales import Telltale
from kubevirt_csi.domain.volumes import Content, PublishContext


class Probed(Enum):
    """What low-level probing of the device said."""

    FOUND = "found"
    """A signature, of whatever kind."""
    NOTHING = "nothing"
    """No signature that it knows; says nothing about the rest of the device."""
    AMBIVALENT = "ambivalent"
    """Several signatures that contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The answer of probing: ``kind`` names the file system, partition table or member signature that was found."""

    result: Probed
    kind: str = ""
    is_file_system: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the decision looks at.

    ``written`` is a telltale place that is not zero, None if all are. ``mark`` is the volume id in the mark of a
    format that was started and after which nothing was ever mounted; None without one. ``recorded``: this node
    remembers to have used the volume.
    """

    volume_id: str
    disk: Disk
    probe: Probe
    written: Telltale | None
    mark: str | None
    recorded: bool
    context: PublishContext
    requested: str
    """The file system type that the capability names; empty when it leaves that to the driver."""


@dataclass(frozen=True, slots=True)
class UseAsIs:
    """There is a file system of this type: mount it, never format."""

    fs_type: str


@dataclass(frozen=True, slots=True)
class Format:
    """The disk may be formatted; with ``after_zero_read`` only when every byte of it was read as zero.

    ``wipe``: signatures may be there that mkfs would leave in place, and have to go first.
    """

    after_zero_read: bool
    reason: str
    wipe: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """The disk is neither usable nor provably blank; ``reason`` says what was found and what can be done."""

    reason: str


def decide(evidence: Evidence) -> UseAsIs | Format | Refuse:
    """What may be done with the disk. The same evidence always gives the same answer."""
    blocked = _blocked(evidence.disk)
    if blocked:
        return Refuse(blocked)
    if evidence.mark == evidence.volume_id and evidence.context.content is not Content.SOURCE:
        reason = "a format was started and nothing mounted since"
        return _sized(evidence, Format(after_zero_read=False, reason=reason, wipe=True))
    probe = evidence.probe
    if probe.result is Probed.FOUND and probe.is_file_system and probe.kind in FILE_SYSTEMS:
        return _existing(evidence)
    doubt = _doubt(evidence)
    if doubt and evidence.context.override == evidence.context.serial:
        reason = f"an operator's override, although {doubt}"
        return _sized(evidence, Format(after_zero_read=False, reason=reason, wipe=True))
    if doubt:
        return Refuse(f"{doubt}; it is not formatted. {how_to_override(evidence.context)}")
    used = evidence.recorded or evidence.context.content is not Content.NONE
    return _sized(evidence, Format(after_zero_read=used, reason="the disk is blank"))


def how_to_override(context: PublishContext) -> str:
    """The advice at the end of a refusal. The serial in it ties the permission to this one disk."""
    return (
        "If its data may be lost, set the annotation csi.kubevirt.io/format-override="
        f"{context.serial} on the volume's claim in the infra cluster and let the volume be detached and attached again"
    )


def _blocked(disk: Disk) -> str:
    """Why nothing may be done with the disk, whatever is on it, and whatever an operator permits."""
    if disk.partitions:
        return f"disk {disk} has partitions ({', '.join(disk.partitions)}); a volume is never partitioned"
    if disk.holders:
        return f"disk {disk} is in use by {', '.join(disk.holders)}; remove that device first"
    return ""


def _existing(evidence: Evidence) -> UseAsIs | Refuse:
    found = evidence.probe.kind
    if evidence.requested and evidence.requested != found:
        return Refuse(
            f"disk {evidence.disk} holds a file system of type {found}, but {evidence.requested} was asked for; "
            "it is neither mounted nor formatted. Ask for the type that it has"
        )
    return UseAsIs(found)


def _doubt(evidence: Evidence) -> str:
    """Why the disk is not provably blank; empty when the edges prove it as far as they can."""
    probe, disk = evidence.probe, evidence.disk
    if probe.result is Probed.FOUND:
        return f"disk {disk} holds a {probe.kind or 'unknown'} signature"
    if probe.result is Probed.AMBIVALENT:
        return f"disk {disk} holds several signatures that contradict each other"
    if evidence.mark is not None:
        return f"disk {disk} holds the mark of a format that was started for volume {evidence.mark!r}"
    if evidence.written is not None:
        return f"disk {disk} holds data that is no file system known here: {evidence.written.what} is not zero"
    if evidence.context.content is Content.SOURCE:
        return f"disk {disk} is blank although the volume was made from a snapshot or a clone, so its data is missing"
    return ""


def _sized(evidence: Evidence, permission: Format) -> Format | Refuse:
    """Only mkfs depends on the size: a file system that is there stays usable when the promise changes."""
    disk, promised = evidence.disk, evidence.context.size_bytes
    fs_type = evidence.requested or DEFAULT_FILE_SYSTEM
    if disk.read_only:
        return Refuse(f"disk {disk} has to be formatted, but is read-only in this node")
    if disk.size_bytes < promised:
        return Refuse(
            f"disk {disk} has to be formatted, but is smaller than the {promised} bytes that were promised; is it the "
            "right disk, and does its image in the infra cluster have its full size?"
        )
    if disk.size_bytes < SMALLEST_BYTES[fs_type]:
        return Refuse(f"disk {disk} is too small for {fs_type}, which needs at least {SMALLEST_BYTES[fs_type]} bytes")
    return permission
