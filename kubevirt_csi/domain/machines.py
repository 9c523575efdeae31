"""A VM of the infra cluster, as far as hot-plug is concerned: what its spec asks for and what its running instance has.

The same volume shows up in up to four places (the VM's queue of requests, VM spec, VMI spec, VMI status), at different
times. "Attached" is a statement about the status of the instance that runs now; "detached" is a statement about all.
The queue exists with the feature gate HotplugVolumes only. What waits in it to be added will be, so it counts as part
of VM spec; yet KubeVirt answers a request to remove it with "does not exist".
Source: KubeVirt pkg/virt-controller/watch/vmi/storage.go, pkg/virt-api/rest/volumes.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

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
    queued: bool = False
    """In the VM's queue only: it cannot be removed before KubeVirt has taken it over into VM spec."""


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
    overhead: Fraction | None = None
    """The share of a Filesystem claim that is not the disk image, as CDI is configured; None where it is not told."""

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
    hotplug_disabled: bool = False
    """Started with ``devices.disableHotplug``: a hot-plug is accepted and never finishes."""

    @property
    def over(self) -> bool:
        """Whether it has ended for good and no longer holds disks open."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A VM and its VMI, either of which may be missing, under one name in the infra namespace.

    ``volumes`` is VM spec and what the queue will add, empty when only a VMI is left; ``uid`` is the VM's, None then.
    ``leaving`` are the names that the queue will remove. ``labels`` are the VM's (the selector is about VMs).
    """

    name: str
    uid: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, PluggedVolume] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    instance: Instance | None = None
    failure: str = ""
    """Message of the VM's condition of type Failure, where KubeVirt tells why hot-plug changes do not get through."""
    deleting: bool = False
    """The VM is on its way out: KubeVirt accepts changes of it, carries none out, and starts no instance any more."""
    migrates_volumes: bool = False
    """``updateVolumesStrategy: Migration``, under which KubeVirt does not take VM spec over into the instance."""

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
        instance = self.live_instance
        found: set[str] = set()
        if not self.deleting or instance is not None:  # what is being deleted never starts again
            found |= {v.name for v in self.volumes.values() if claim in (v.claim, v.name)} | (self.leaving & {claim})
        if instance is not None:
            found |= {v.name for v in instance.volumes.values() if claim in (v.claim, v.name)}
            found |= {s.name for s in instance.statuses.values() if claim in (s.claim, s.name)}
        return frozenset(found)

    def holds(self, claim: str) -> bool:
        """Whether the claim is in the queue, VM spec, VMI spec or VMI status."""
        return bool(self.names_of(claim))

    def wants(self, volume_id: str) -> bool:
        """Whether the volume is to be in the machine: in VM spec, or queued to be, and not queued to be removed."""
        return volume_id in self.volumes and volume_id not in self.leaving

    def attached(self, volume_id: str) -> bool:
        """Whether the guest that runs now has the disk and keeps it; the status says so of one that is leaving, too."""
        instance = self.live_instance
        if instance is None or volume_id not in instance.volumes or volume_id in self.leaving:
            return False
        status = instance.statuses.get(volume_id)
        return status is not None and status.attached

    def only_instance_has(self, volume_id: str) -> bool:
        """Whether the instance is to have the volume, and the VM knows nothing of it (any more)."""
        instance = self.live_instance
        return instance is not None and volume_id in instance.volumes and volume_id not in self.volumes

    def unsettled(self) -> frozenset[str]:
        """The hot-plugged volumes that are on their way in or out; empty while no guest runs.

        KubeVirt replaces one pod for every change, so a change that is sent now delays or breaks these.
        """
        if self.instance is None or not self.running:
            return frozenset()
        instance = self.instance
        seen = {v.name for v in instance.volumes.values() if v.hotpluggable}
        seen |= {s.name for s in instance.statuses.values() if s.hotplug}
        wanted = {v.name for v in self.volumes.values() if v.hotpluggable} - self.leaving
        if self.uid is None:
            wanted = {v.name for v in instance.volumes.values() if v.hotpluggable}
        return frozenset({name for name in wanted if not self.attached(name)} | (seen - wanted) | self.leaving)

    def whereabouts(self, volume_id: str) -> str:
        """Where in the machine the volume is, and what KubeVirt says about it and the machine; for people."""
        text = "in " + ", ".join(self._places(volume_id)) if self.holds(volume_id) else "in neither spec nor status"
        return "; ".join(filter(None, [text, self.circumstances()]))

    def circumstances(self) -> str:
        """What may keep KubeVirt from carrying changes of the machine out, empty when nothing is known; for people."""
        return "; ".join(self._circumstances())

    def _places(self, volume_id: str) -> Iterator[str]:
        plugged, instance = self.volumes.get(volume_id), self.instance
        if plugged is not None:
            yield "VM status.volumeRequests, waiting to be added" if plugged.queued else "VM spec"
        if volume_id in self.leaving:
            yield "VM status.volumeRequests, waiting to be removed"
        if instance is not None and volume_id in instance.volumes:
            yield "VMI spec"
        if instance is not None and volume_id in instance.statuses:
            yield f"VMI status ({instance.statuses[volume_id].describe()})"

    def _circumstances(self) -> Iterator[str]:
        if self.deleting:
            yield "the VM is being deleted and takes no changes any more; its disks are free when its VMI has ended"
        if self.instance is None:
            yield "there is no VMI"
        elif self.instance.phase != RUNNING:
            yield f"VMI phase {self.instance.phase or 'not set'}"
        elif self.instance.deleting:
            yield "the VMI is being deleted"
        elif self.instance.migrating:
            yield "migration in progress"
        if self.migrates_volumes:
            yield "updateVolumesStrategy is Migration, which keeps VM spec from being taken over into the VMI"
        if self.failure:
            yield f"VM reports: {self.failure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All machines of the namespace as one fresh read of them shows; ``nodes`` names those that can be tenant nodes.

    VMs were read before instances: a volume enters VM spec first, and leaves the VMI last.
    """

    machines: Mapping[str, Machine]
    nodes: frozenset[str]

    def node(self, name: str) -> Machine | None:
        """The machine, None when there is none that can be a node."""
        return self.machines[name] if name in self.nodes else None

    def holders(self, claim: str) -> list[Machine]:
        """Every machine that has the claim in VM spec, VMI spec or VMI status, node or not, by name."""
        return [machine for _, machine in sorted(self.machines.items()) if machine.holds(claim)]
