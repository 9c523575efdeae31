"""A volume in the infra cluster: a claim plus an optional DataVolume of the same name.

State lives on the claim (copied there from the DataVolume when CDI makes it); a DataVolume that was collected, or a
bare claim, is no special case. Annotations that an older object lacks mean "unknown", never a mismatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from kubevirt_csi.domain.attachments import Attachments
from kubevirt_csi.domain.overhead import FILE_SYSTEM_OVERHEAD, image_bytes
from kubevirt_csi.domain.volumes import Bus, Content

PREFIX = "csi.kubevirt.io/"
SERIAL = PREFIX + "serial"
BUS = PREFIX + "bus"
CONTENT = PREFIX + "content"
ATTACHMENTS = PREFIX + "attachments"
NAME = PREFIX + "name"
DIGEST = PREFIX + "digest"
FORMAT_OVERRIDE = PREFIX + "format-override"
"""An operator's permission, for the next attachment."""
OVERRIDE_IN_FORCE = PREFIX + "format-override-in-force"
"""The same, once it belongs to an attachment; it ends with it."""
MKFS_OPTIONS = PREFIX + "mkfs-options"
SIZE = PREFIX + "size"
"""What the last growth promised the guest, in bytes; counts once the claim has the capacity that it asks for."""
KEPT_ON_CLAIM = (
    *(SERIAL, BUS, CONTENT, ATTACHMENTS, NAME, DIGEST),
    *(FORMAT_OVERRIDE, OVERRIDE_IN_FORCE, MKFS_OPTIONS, SIZE),
)

SUCCEEDED = "Succeeded"
FAILED = "Failed"
PENDING = "Pending"
BOUND = "Bound"
LOST = "Lost"
BLOCK = "Block"
WAITING_FOR_CONSUMER = ("WaitForFirstConsumer", "PendingPopulation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One of CDI's conditions on a DataVolume, or of Kubernetes' on a claim."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVolume:
    """The DataVolume half: identity, phase (empty while CDI has not looked at it), conditions, requested bytes."""

    uid: str
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    size_bytes: int = 0
    of_disk: bool = True
    """``size_bytes`` is what the guest shall see (``spec.storage``), not what the claim has (``spec.pvc``)."""
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim half: identity, phase, sizes in bytes; ``capacity_bytes`` is None until it is bound.

    ``allocated_bytes``, ``resize_state`` and ``conditions`` tell of a growth; the first two are missing where the
    cluster is older than Kubernetes 1.32. ``annotations`` are this driver's, as they were read; None where the claim
    has none at all, not even others'.
    """

    uid: str
    resource_version: str
    phase: str = ""
    size_bytes: int = 0
    capacity_bytes: int | None = None
    volume_mode: str = "Filesystem"
    storage_class: str = ""
    allocated_bytes: int | None = None
    resize_state: str = ""
    conditions: tuple[Condition, ...] = ()
    annotations: Mapping[str, str] | None = None
    deleting: bool = False

    @property
    def present_bytes(self) -> int:
        """What it asks for and also has: less than it asks for while it grows."""
        return self.size_bytes if self.capacity_bytes is None else min(self.size_bytes, self.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraVolume:
    """Both halves and what the annotations say (the claim's win over the DataVolume's)."""

    id: str
    data_volume: DataVolume | None
    claim: Claim | None
    serial: str
    """Annotated, else the DataVolume's UID: then it is a volume of the predecessor."""
    bus: Bus | None
    """None: not recorded (the predecessor's volume)."""
    content: Content = Content.USED
    attachments: Attachments = field(default_factory=dict)
    name: str | None = None
    digest: str | None = None
    override: str | None = None
    override_in_force: str | None = None
    mkfs_options: str = ""
    promised_bytes: int = 0
    """What the last growth promised the guest; 0 for a volume that was never grown by this driver."""

    @property
    def size_bytes(self) -> int:
        """The least that the guest sees, in bytes: what was asked for, as far as the infra objects still tell."""
        return self.least_bytes(FILE_SYSTEM_OVERHEAD)

    def least_bytes(self, overhead: Fraction) -> int:
        """The same, where the infra cluster's file system overhead is known.

        The disk in a Filesystem claim is an image, smaller than the claim. A DataVolume made with ``spec.storage``
        names the image's size and CDI makes the claim larger; everything else names the claim's. A DataVolume never
        tells that its claim has grown: a Block claim does by itself, a Filesystem claim by what the growth promised.
        """
        made, claim = self.data_volume, self.claim
        of_disk = made is not None and made.size_bytes > 0 and (made.of_disk or claim is None)
        least = made.size_bytes if made is not None and of_disk else 0
        if claim is None:
            return least
        if not self.is_file:
            return max(least, claim.present_bytes)
        if not of_disk:
            least = image_bytes(claim.present_bytes, overhead)
        return max(least, self.promised_bytes if claim.present_bytes == claim.size_bytes else 0)

    @property
    def capacity_bytes(self) -> int:
        """What the guest will see, in bytes: a Block claim's real capacity once it is bound, never less than asked.

        The capacity of a Filesystem claim says nothing, because it includes the overhead around the disk image.
        """
        real = None if self.claim is None or self.is_file else self.claim.capacity_bytes
        return max(self.size_bytes, real or 0)

    @property
    def is_file(self) -> bool:
        """Whether the disk is an image in a Filesystem claim; unknown without a claim, and taken for no then."""
        return self.claim is not None and self.claim.volume_mode != BLOCK

    @property
    def populates_on_use(self) -> bool:
        """Whether only a consumer, so the hot-plug itself, makes the infra cluster bind and fill it."""
        if self.data_volume is None:
            return self.claim is not None and self.claim.phase == PENDING
        return self.data_volume.phase in WAITING_FOR_CONSUMER

    @property
    def filled(self) -> bool:
        """Whether nothing has to happen in the storage any more; of a Filesystem claim without DataVolume unknown."""
        if self.data_volume is None:
            return self.claim is not None and self.claim.phase == BOUND and not self.is_file
        return self.data_volume.phase == SUCCEEDED

    @property
    def decided(self) -> bool:
        """Whether the volume can be plugged: it is filled, or waits for its consumer; a bare claim always can.

        Never without a claim, nor with one on its way out: it would keep the VM from all hot-plug changes.
        """
        if self.claim is None or self.claim.deleting or self.claim.phase == LOST:
            return False
        return self.data_volume is None or self.filled or self.populates_on_use

    @property
    def hopeless(self) -> bool:
        """Whether it will never be ready by itself: CDI has given it up, or its storage is gone."""
        lost = self.claim is not None and self.claim.phase == LOST
        if self.data_volume is None:
            return lost
        return lost or self.data_volume.phase == FAILED or (self.data_volume.phase == SUCCEEDED and self.claim is None)

    def describe(self) -> str:
        """Phase and CDI's condition texts, where the infra cluster's own errors surface; for people."""
        claim = f"claim phase {self.claim.phase or 'not set yet'}" if self.claim is not None else "no claim"
        if self.data_volume is None:
            image = "; its volumeMode is Filesystem, so it must have a disk.img" if self.is_file else ""
            return f"no DataVolume; {claim}{image}" if self.claim is not None else "nothing of it exists"
        words = [f"DataVolume phase {self.data_volume.phase or 'not set yet'}"]
        for condition in self.data_volume.conditions:
            if condition.status != "True" and (condition.message or condition.reason):
                told = ": ".join(word for word in (condition.reason, condition.message) if word)
                words.append(f"{condition.type} {told}")
        if self.hopeless:
            words.append(claim)
        return "; ".join(words)

    @property
    def deleting(self) -> bool:
        """Whether either half is on its way out."""
        return any(half is not None and half.deleting for half in (self.data_volume, self.claim))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVolume:
    """What CreateVolume writes: a blank DataVolume and the annotations that later calls compare."""

    id: str
    name: str
    """The CSI name, as asked for."""
    size_bytes: int
    storage_class: str | None
    read_write_many: bool
    """Only raw block for several nodes asks for it; otherwise the StorageProfile chooses."""
    serial: str
    bus: Bus
    digest: str
    content: Content = Content.NONE
    mkfs_options: str = ""
