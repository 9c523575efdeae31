"""DataVolumes and claims of the fake infra cluster, and what CDI and the claims' class make of them.

A class decides, by name, how its volumes go: it may bind on first consumer, give Filesystem claims with overhead, or
fail with a condition. Claims have resourceVersions and are kept while a VMI uses them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from kubevirt_csi.domain import infra_volumes
from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import Claim, Condition, DataVolume, InfraVolume, NewVolume
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.errors import ResourceExhausted
from kubevirt_csi.ports.infra import Stale
from tests.fakes.infra_ground import Ground
from tests.fakes.infra_objects import Volume

OVERHEAD = Fraction(6, 100)


class Storage(Ground):
    """Volumes and the controllers that look after them."""

    def __init__(self) -> None:
        super().__init__()
        self.behaviour: dict[str, str] = {}
        """By storage class: the DataVolume phase to stay in, the condition reason to fail with, or ``Filesystem``."""
        self.overhead = OVERHEAD
        self.growth: dict[str, str] = {}
        """By volume: how its storage grows it, if not as asked. ``never``, ``for a node`` (a node has the rest to do),
        or why it is infeasible."""
        self.extra_bytes = 0
        """By how much claims come out larger than asked."""

    def have_volume(
        self,
        name: str,
        *,
        phase: str = "Succeeded",
        size: int = 2**30,
        content: Content | None = Content.NONE,
        serial: str | None = "0123456789abcdef0123",
        bus: Bus | None = Bus.SCSI,
        conditions: tuple[Condition, ...] = (),
        digest: str | None = None,
        data_volume: bool = True,
        ours: bool = True,
        mode: str = "Block",
    ) -> Volume:
        """A volume that exists, with its claim, which is larger than asked when its mode is Filesystem."""
        values = {
            infra_volumes.SERIAL: serial,
            infra_volumes.BUS: bus.value if bus else None,
            infra_volumes.CONTENT: content.value if content else None,
            infra_volumes.DIGEST: digest,
        }
        annotations = {key: value for key, value in values.items() if value is not None}
        made = DataVolume(uid=f"dv-{name}", phase=phase, conditions=conditions, size_bytes=size)
        volume = Volume(
            storage_class=None,
            annotations=dict(annotations),
            data_volume=made if data_volume else None,
            claim=Claim(
                uid=f"claim-{name}",
                resource_version=self.version(),
                phase="Bound",
                size_bytes=claimed(size, mode),
                capacity_bytes=claimed(size, mode),
                volume_mode=mode,
            ),
            claim_annotations=dict(annotations),
            ours=ours,
        )
        self.volumes[name] = volume
        self.touch(name)
        return volume

    def volume(self, name: str) -> InfraVolume | None:
        found = self.volumes.get(name)
        return found.value(name) if found is not None and found.ours else None

    def create(self, new: NewVolume) -> None:
        if new.id in self.volumes:
            return
        if self.behaviour.get(new.storage_class or "") == "CountQuota":
            raise ResourceExhausted("exceeded quota: count/datavolumes.cdi.kubevirt.io")
        uid = f"dv-{self.version()}"
        self.volumes[new.id] = Volume(
            storage_class=new.storage_class,
            annotations={
                infra_volumes.NAME: new.name,
                infra_volumes.SERIAL: new.serial,
                infra_volumes.BUS: new.bus.value,
                infra_volumes.CONTENT: new.content.value,
                infra_volumes.DIGEST: new.digest,
                infra_volumes.MKFS_OPTIONS: new.mkfs_options,
            },
            data_volume=DataVolume(uid=uid, size_bytes=new.size_bytes),
        )
        self.touch(new.id)
        self.later(self.timing.claim, lambda: self._make_claim(new.id, uid))

    def _same(self, name: str, uid: str) -> Volume | None:
        volume = self.volumes.get(name)
        return (
            volume if volume is not None and volume.data_volume is not None and volume.data_volume.uid == uid else None
        )

    def _make_claim(self, name: str, uid: str) -> None:
        volume = self._same(name, uid)
        if volume is None or volume.data_volume is None:
            return
        behaviour = self.behaviour.get(volume.storage_class or "", "")
        if behaviour.startswith("Err"):
            kind = "Running" if behaviour == "ErrExceededQuota" else "Bound"
            self.condition(name, Condition(type=kind, status="False", reason=behaviour, message=f"text of {behaviour}"))
            return
        mode = "Filesystem" if behaviour == "Filesystem" else "Block"
        volume.claim = Claim(
            uid=f"claim-{self.version()}",
            resource_version=self.version(),
            phase="Pending",
            size_bytes=claimed(volume.data_volume.size_bytes, mode),
            volume_mode=mode,
        )
        volume.claim_annotations = dict(volume.annotations)
        if behaviour and mode == "Block":
            self.set_phase(name, behaviour)
            return
        self.set_phase(name, "ImportInProgress")
        self.later(self.timing.populate, lambda: self._imported(name, uid))

    def _imported(self, name: str, uid: str) -> None:
        if self._same(name, uid) is not None:
            self.populated(name)

    def populated(self, name: str) -> None:
        """The claim is bound and filled."""
        volume = self.volumes.get(name)
        if volume is None or volume.claim is None:
            return
        volume.claim = replace(volume.claim, phase="Bound", capacity_bytes=volume.claim.size_bytes + self.extra_bytes)
        if volume.data_volume is not None:
            volume.data_volume = replace(volume.data_volume, phase="Succeeded")
        self.touch(name)

    def set_phase(self, name: str, phase: str) -> None:
        volume = self.volumes[name]
        assert volume.data_volume is not None
        volume.data_volume = replace(volume.data_volume, phase=phase)
        self.touch(name)

    def condition(self, name: str, *conditions: Condition) -> None:
        volume = self.volumes[name]
        assert volume.data_volume is not None
        volume.data_volume = replace(volume.data_volume, conditions=conditions)
        self.touch(name)

    def annotate(self, volume: InfraVolume, changes: dict[str, str | None]) -> None:
        found, known = self.volumes.get(volume.id), volume.claim
        assert known is not None
        if (
            found is None
            or found.claim is None
            or (found.claim.uid, found.claim.deleting) != (known.uid, known.deleting)
        ):
            raise Stale("the claim has gone")
        if found.claim_annotations != known.annotations:
            raise Stale("its annotations have changed")
        for key, value in changes.items():
            if value is None:
                found.claim_annotations.pop(key, None)
            else:
                found.claim_annotations[key] = value
        found.claim = replace(found.claim, resource_version=self.version())
        self.touch(volume.id)

    def resize(self, volume: InfraVolume, growth: Growth) -> None:
        """Kubernetes' rules for a claim that asks for another size, and then its storage."""
        found = self.volumes.get(volume.id)
        assert found is not None
        assert found.claim is not None
        assert found.claim.phase == "Bound"
        assert growth.claim_bytes > (found.claim.capacity_bytes or 0) or growth.claim_bytes >= found.claim.size_bytes
        assert volume.claim is not None
        if found.claim.resource_version != volume.claim.resource_version:
            raise Stale("the claim has changed")
        self.annotate(volume, {infra_volumes.SIZE: str(growth.size_bytes)})
        found.claim = replace(found.claim, size_bytes=growth.claim_bytes)
        self.touch(volume.id)
        self.later(self.timing.grow, lambda: self._grow(volume.id, growth.claim_bytes))

    def _grow(self, name: str, asked: int) -> None:
        found, how = self.volumes[name], self.growth.get(name, "")
        if found.claim is None or found.claim.size_bytes != asked or how == "never":
            return
        told: Condition | None
        if how == "for a node":
            told = Condition(type="FileSystemResizePending", status="True", message="a pod has to be (re)started")
            state, capacity = "NodeResizePending", found.claim.capacity_bytes
        elif how:
            told = Condition(type="ControllerResizeError", status="True", message=how)
            state, capacity = "ControllerResizeInfeasible", found.claim.capacity_bytes
        else:
            told, state, capacity = None, "", asked + self.extra_bytes
        found.claim = replace(
            found.claim,
            allocated_bytes=asked,
            capacity_bytes=capacity,
            resize_state=state,
            conditions=(told,) if told else (),
            resource_version=self.version(),
        )
        self.touch(name)

    def delete(self, volume: InfraVolume) -> None:
        found = self.volumes.get(volume.id)
        if found is None:
            return
        if volume.data_volume is not None and found.data_volume is not None:
            if found.data_volume.uid != volume.data_volume.uid:
                raise Stale("another DataVolume bears the name")
            found.data_volume = None
        if found.claim is not None:
            found.claim = replace(found.claim, deleting=True, resource_version=self.version())
        self.touch(volume.id)
        self.later(self.timing.gc, lambda: self.collect(volume.id))

    def collect(self, name: str) -> None:
        """Removes what nothing uses any more, as the garbage collector and claim protection do."""
        found = self.volumes.get(name)
        if found is None or found.data_volume is not None:
            return
        used = any(m.instance is not None and name in m.instance.statuses for m in self.machines.values())
        if not used:
            del self.volumes[name]
            self.touch(name)
        else:
            self.later(1.0, lambda: self.collect(name))


def claimed(size: int, mode: str) -> int:
    """What CDI asks of the storage for a disk of this size."""
    return size if mode == "Block" else math.ceil(size * (1 + OVERHEAD))
