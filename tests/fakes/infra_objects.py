"""What the fake infra cluster keeps: a volume's objects, the faults to come, and how long things take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kubevirt_csi.domain import attachments, infra_volumes
from kubevirt_csi.domain.infra_volumes import Claim, DataVolume, InfraVolume
from kubevirt_csi.domain.volumes import Bus, Content


@dataclass
class Fault:
    """How one request goes wrong: the answer, and whether (and how many seconds later) it is carried out anyway."""

    error: Exception
    carried_out_after: float | None = None


@dataclass
class Volume:
    """The objects of a volume, with what the driver wrote on them."""

    storage_class: str | None
    annotations: dict[str, str]
    data_volume: DataVolume | None = None
    claim: Claim | None = None
    claim_annotations: dict[str, str] = field(default_factory=dict)
    ours: bool = True

    @property
    def waits_for_use(self) -> bool:
        """Whether only a pod that uses it makes the storage bind and fill it."""
        if self.data_volume is not None:
            return self.data_volume.phase in infra_volumes.WAITING_FOR_CONSUMER
        return self.claim is not None and self.claim.phase == "Pending"

    def value(self, name: str) -> InfraVolume:
        """As the port gives it: the claim's annotations win."""
        notes = {**self.annotations, **self.claim_annotations} if self.claim else self.annotations
        bus = notes.get(infra_volumes.BUS)
        return InfraVolume(
            id=name,
            data_volume=self.data_volume,
            claim=replace(self.claim, annotations=dict(self.claim_annotations)) if self.claim else None,
            serial=notes.get(infra_volumes.SERIAL) or (self.data_volume.uid if self.data_volume else ""),
            bus=Bus(bus) if bus else None,
            content=Content(notes.get(infra_volumes.CONTENT, "used")),
            attachments=attachments.decode(notes.get(infra_volumes.ATTACHMENTS)),
            name=notes.get(infra_volumes.NAME),
            digest=notes.get(infra_volumes.DIGEST),
            override=notes.get(infra_volumes.FORMAT_OVERRIDE),
            override_in_force=notes.get(infra_volumes.OVERRIDE_IN_FORCE),
            mkfs_options=notes.get(infra_volumes.MKFS_OPTIONS, ""),
            promised_bytes=int(notes.get(infra_volumes.SIZE, 0)),
        )


@dataclass
class Timing:
    """Seconds that the cluster takes, and what a request takes."""

    request: float = 0.01
    claim: float = 0.2
    populate: float = 1.0
    sync: float = 0.5
    queue: float = 0.3
    """How long a request waits in the VM's queue, with the older feature gate."""
    attach: Callable[[], float] = lambda: 5.0
    gc: float = 0.5
    grow: float = 2.0
