"""A VM of the infra cluster, as far as hot-plug is concerned: what its spec asks for and what its running instance has.

The same volume shows up in up to three places (VM spec, VMI spec, VMI status), at different times. "Attached" is a
statement about the status of the instance that runs now; "detached" is a statement about all three.
Source: KubeVirt pkg/virt-controller/watch/vmi/storage.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubevirt_csi.domain.volumes import Bus

READY = "Ready"
RUNNING = "Running"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedVolume:
    """A volume in the spec of a VM or VMI: its name there, and the claim or DataVolume that it refers to."""

    name: str
    claim: str
    hotpluggable: bool
    serial: str | None = None
    """Of the disk entry; None when there is no disk or it has none."""
    bus: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug:
    """A disk to hot-plug: volume id = DataVolume name = claim name = volume name in the VM."""

    volume_id: str
    serial: str
    bus: Bus
    read_only: bool = False
    shared: bool = False
    """Several VMs write it at once (raw block ReadWriteMany)."""
    bare_claim: bool = False
    """The claim has no DataVolume (any more), so the volume refers to the claim itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatus:
    """An entry of ``VMI.status.volumeStatus``."""

    name: str
    phase: str = ""
    target: str = ""
    reason: str = ""
    message: str = ""
    claim: str | None = None
    hotplug: bool = False

    @property
    def attached(self) -> bool:
        """Phase and target together: a disk that left the domain keeps phase Ready and loses its target."""
        return self.phase == READY and bool(self.target)

    def describe(self) -> str:
        """For error texts: phase, reason and message."""
        words = [self.phase or "no phase"] + [word for word in (self.reason, self.message) if word]
        return ": ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A VMI: the running incarnation of a VM, another UID at every start."""

    uid: str
    phase: str
    volumes: Mapping[str, PluggedVolume] = field(default_factory=dict)
    statuses: Mapping[str, VolumeStatus] = field(default_factory=dict)
    migrating: bool = False
    deleting: bool = False

    @property
    def over(self) -> bool:
        """Whether it has ended for good and no longer holds disks open."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A VM and its VMI, either of which may be missing, under one name in the infra namespace.

    ``volumes`` is VM spec, empty when only a VMI is left; ``uid`` is the VM's, None then.
    ``labels`` are the VM's (the selector is about VMs).
    """

    name: str
    uid: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, PluggedVolume] = field(default_factory=dict)
    instance: Instance | None = None
    failure: str = ""
    """Message of the VM's condition of type Failure, where KubeVirt tells why hot-plug changes do not get through."""

    @property
    def running(self) -> bool:
        """Whether there is a guest that can take a disk now; a VM that still boots would wait for it with its boot."""
        return self.instance is not None and self.instance.phase == RUNNING and not self.instance.deleting

    @property
    def live_instance(self) -> Instance | None:
        """The instance, unless it has ended: then its status is never updated again and its disks are free."""
        return None if self.instance is None or self.instance.over else self.instance

    def names_of(self, claim: str) -> frozenset[str]:
        """The volume names under which the claim is anywhere in this machine, by claim or by name."""
        found = {v.name for v in self.volumes.values() if claim in (v.claim, v.name)}
        instance = self.live_instance
        if instance is not None:
            found |= {v.name for v in instance.volumes.values() if claim in (v.claim, v.name)}
            found |= {s.name for s in instance.statuses.values() if claim in (s.claim, s.name)}
        return frozenset(found)

    def holds(self, claim: str) -> bool:
        """Whether the claim is in VM spec, VMI spec or VMI status."""
        return bool(self.names_of(claim))

    def attached(self, volume_id: str) -> bool:
        """Whether the guest that runs now has the disk."""
        instance = self.live_instance
        status = instance.statuses.get(volume_id) if instance is not None else None
        return status is not None and status.attached

    def unsettled(self) -> frozenset[str]:
        """The hot-plugged volumes that are on their way in or out; empty while no guest runs.

        KubeVirt replaces one pod for every change, so a change that is sent now delays or breaks these.
        """
        if self.instance is None or not self.running:
            return frozenset()
        instance = self.instance
        seen = {v.name for v in instance.volumes.values() if v.hotpluggable}
        seen |= {s.name for s in instance.statuses.values() if s.hotplug}
        wanted = {v.name for v in self.volumes.values() if v.hotpluggable}
        if self.uid is None:
            wanted = {v.name for v in instance.volumes.values() if v.hotpluggable}
        return frozenset({name for name in wanted if not self.attached(name)} | (seen - wanted))
