"""A volume in the infra cluster: a claim plus an optional DataVolume of the same name.

State lives on the claim (copied there from the DataVolume when CDI makes it); a DataVolume that was collected, or a
bare claim, is no special case. Annotations that an older object lacks mean "unknown", never a mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kubevirt_csi.domain.attachments import Attachments
from kubevirt_csi.domain.volumes import Bus, Content

PREFIX = "csi.kubevirt.io/"
SERIAL = PREFIX + "serial"
BUS = PREFIX + "bus"
CONTENT = PREFIX + "content"
ATTACHMENTS = PREFIX + "attachments"
NAME = PREFIX + "name"
DIGEST = PREFIX + "digest"
FORMAT_OVERRIDE = PREFIX + "format-override"

SUCCEEDED = "Succeeded"
WAITING_FOR_CONSUMER = ("WaitForFirstConsumer", "PendingPopulation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One of CDI's conditions on a DataVolume."""

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
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim half: identity, phase, sizes in bytes; ``capacity_bytes`` is None until it is bound."""

    uid: str
    resource_version: str
    phase: str = ""
    size_bytes: int = 0
    capacity_bytes: int | None = None
    volume_mode: str = "Filesystem"
    deleting: bool = False


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

    @property
    def size_bytes(self) -> int:
        """What was asked for, in bytes: the DataVolume's request, since a Filesystem claim is made larger."""
        if self.data_volume is not None and self.data_volume.size_bytes:
            return self.data_volume.size_bytes
        return self.claim.size_bytes if self.claim is not None else 0

    @property
    def capacity_bytes(self) -> int:
        """What the guest will see, in bytes: a Block claim's real capacity once it is bound, never less than asked.

        The capacity of a Filesystem claim says nothing, because it includes the overhead around the disk image.
        """
        real = self.claim.capacity_bytes if self.claim is not None and self.claim.volume_mode == "Block" else None
        return max(self.size_bytes, real or 0)

    @property
    def populates_on_use(self) -> bool:
        """Whether only a consumer, so the hot-plug itself, makes the infra cluster bind and fill it."""
        return self.data_volume is not None and self.data_volume.phase in WAITING_FOR_CONSUMER

    @property
    def decided(self) -> bool:
        """Whether the volume can be plugged: it is filled, or waits for its consumer; a bare claim always can."""
        if self.data_volume is None:
            return self.claim is not None
        return self.data_volume.phase == SUCCEEDED or self.populates_on_use

    def describe(self) -> str:
        """Phase and CDI's condition texts, where the infra cluster's own errors surface; for people."""
        if self.data_volume is None:
            return "no DataVolume" if self.claim is not None else "nothing of it exists"
        words = [f"DataVolume phase {self.data_volume.phase or 'not set yet'}"]
        for condition in self.data_volume.conditions:
            if condition.status != "True" and (condition.message or condition.reason):
                told = ": ".join(word for word in (condition.reason, condition.message) if word)
                words.append(f"{condition.type} {told}")
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
