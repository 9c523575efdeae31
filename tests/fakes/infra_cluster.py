"""A small management cluster in memory, as odd as the real one where it matters to the driver.

VM spec changes at once, the VMI's spec a moment later, its status later still. One attachment pod carries all
hot-plugged volumes of a VM and is replaced for every change, so a change restarts the clock for all that are not
attached yet, and one volume that cannot be attached keeps back the others. Claims have resourceVersions and are kept
while a VMI uses them. Requests can be made to fail before, or after, or long before they are carried out.

Time is the event loop's, so a test runs in looptime.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace

from kubevirt_csi.domain import infra_volumes
from kubevirt_csi.domain.infra_volumes import Claim, Condition, DataVolume, InfraVolume, NewVolume
from kubevirt_csi.domain.machines import Instance, Machine, Plug, PluggedVolume, VolumeStatus
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.errors import NotFound, ResourceExhausted
from kubevirt_csi.operations.waiting import Notice
from kubevirt_csi.ports.infra import Stale
from tests.fakes.infra_objects import Fault, Timing, Volume

NAMESPACE = "tenant-a"


class InfraCluster:
    """Objects and their controllers. Tests reach in and change what they like, then call ``touch``."""

    def __init__(self) -> None:
        self.timing = Timing()
        self.volumes: dict[str, Volume] = {}
        self.machines: dict[str, Machine] = {}
        self.foreign_machines: set[str] = set()
        """VMs that the selector does not match."""
        self.behaviour: dict[str, str] = {}
        """By storage class: the DataVolume phase to stay in, or the condition reason to fail with."""
        self.stuck: set[str] = set()
        """Volumes that the attachment pod cannot get."""
        self.exclusive: set[str] = set()
        self.violations: list[str] = []
        self.journal: list[tuple[float, str, str, str]] = []
        """Requests that change a VM: time, verb, VM, volume."""
        self.reads: Counter[str] = Counter()
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.extra_bytes = 0
        """By how much claims come out larger than asked."""
        self.orphan_effect: float | None = None
        """Seconds after which a request is carried out whose sender died, None for never."""
        self.plugs: list[Plug] = []
        self.touched: list[Callable[[str], None]] = []
        self._version = 100
        self._pod: Counter[str] = Counter()
        self.changes = Notice()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def version(self) -> str:
        self._version += 1
        return str(self._version)

    def touch(self, name: str) -> None:
        for tell in self.touched:
            tell(name)
        self.changes.notify()

    def fail(self, request: str, error: Exception, *, carried_out_after: float | None = None, times: int = 1) -> None:
        self.faults[request].extend([Fault(error, carried_out_after)] * times)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)

    # -- volumes -----------------------------------------------------------------------------------------------

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
    ) -> Volume:
        """A volume that exists, with its claim."""
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
            claim=Claim(uid=f"claim-{name}", resource_version=self.version(), phase="Bound", size_bytes=size),
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
        volume.claim = Claim(
            uid=f"claim-{self.version()}",
            resource_version=self.version(),
            phase="Pending",
            size_bytes=volume.data_volume.size_bytes,
            volume_mode="Block",
        )
        volume.claim_annotations = dict(volume.annotations)
        if behaviour:
            self.set_phase(name, behaviour)
            return
        self.set_phase(name, "ImportInProgress")
        self.later(self.timing.populate, lambda: self._populated(name, uid))

    def _populated(self, name: str, uid: str) -> None:
        volume = self._same(name, uid)
        if volume is not None and volume.claim is not None:
            volume.claim = replace(
                volume.claim, phase="Bound", capacity_bytes=volume.claim.size_bytes + self.extra_bytes
            )
            self.set_phase(name, "Succeeded")

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
        found = self.volumes.get(volume.id)
        assert volume.claim is not None
        if found is None or found.claim is None or found.claim.resource_version != volume.claim.resource_version:
            raise Stale("the claim has changed")
        for key, value in changes.items():
            if value is None:
                found.claim_annotations.pop(key, None)
            else:
                found.claim_annotations[key] = value
        found.claim = replace(found.claim, resource_version=self.version())
        self.touch(volume.id)

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

    # -- machines ----------------------------------------------------------------------------------------------

    def have_vm(self, name: str, *, running: bool = True, uid: str = "") -> None:
        instance = Instance(uid=f"vmi-{self.version()}", phase="Running") if running else None
        self.machines[name] = Machine(name=name, uid=uid or f"vm-{self.version()}", instance=instance)
        self.touch(name)

    def change_vm(self, name: str, **changes: object) -> None:
        """Replaces fields of the machine, or of its instance: ``phase``, ``migrating``, ``statuses``."""
        machine = self.machines[name]
        own = {key: value for key, value in changes.items() if key in ("uid", "volumes", "instance", "failure")}
        of_instance = {key: value for key, value in changes.items() if key not in own and key != "vmi_volumes"}
        if "vmi_volumes" in changes:
            of_instance["volumes"] = changes["vmi_volumes"]
        if of_instance:
            assert machine.instance is not None
            own["instance"] = replace(machine.instance, **of_instance)  # type: ignore[arg-type]
        self.machines[name] = replace(machine, **own)  # type: ignore[arg-type]
        self.touch(name)

    def remove_vm(self, name: str) -> None:
        """The VM object goes; its instance stays."""
        self.change_vm(name, uid=None, volumes={})

    def remove_instance(self, name: str) -> None:
        """The instance ends and is removed; with a VM it may be started anew by ``start``."""
        machine = self.machines[name]
        self.machines[name] = replace(machine, instance=None)
        if machine.uid is None:
            del self.machines[name]
        self.touch(name)

    def start(self, name: str) -> None:
        """A new instance, which gets the VM's volumes as KubeVirt plugs them again."""
        machine = self.machines[name]
        self.machines[name] = replace(machine, instance=Instance(uid=f"vmi-{self.version()}", phase="Running"))
        self.touch(name)
        self.later(self.timing.sync, lambda: self._sync(name))

    def plugged(self, name: str, *, claim: str = "", hotpluggable: bool = True) -> PluggedVolume:
        return PluggedVolume(
            name=name, claim=claim or name, hotpluggable=hotpluggable, serial="0123456789abcdef0123", bus="scsi"
        )

    def have_attached(self, vm: str, name: str, *, phase: str = "Ready", target: str = "sda") -> None:
        """The volume is in VM spec, VMI spec and VMI status already."""
        machine = self.machines[vm]
        assert machine.instance is not None
        volume = self.plugged(name)
        status = VolumeStatus(name=name, phase=phase, target=target, claim=name, hotplug=True)
        instance = replace(
            machine.instance,
            volumes={**machine.instance.volumes, name: volume},
            statuses={**machine.instance.statuses, name: status},
        )
        self.machines[vm] = replace(machine, volumes={**machine.volumes, name: volume}, instance=instance)
        self.touch(vm)

    def add_volume(self, vm: str, plug: Plug) -> None:
        machine = self.machines.get(vm)
        if machine is None or machine.uid is None:
            raise NotFound(f"virtualmachine {vm} not found")
        if any(plug.volume_id in (v.name, v.claim) for v in machine.volumes.values()):
            raise Stale(f"Unable to add volume [{plug.volume_id}] because volume with that name already exists")
        self._watch_exclusivity(vm, plug.volume_id)
        self.plugs.append(plug)
        self.journal.append((self.now(), "add", vm, plug.volume_id))
        volume = PluggedVolume(
            name=plug.volume_id, claim=plug.volume_id, hotpluggable=True, serial=plug.serial, bus=plug.bus.value
        )
        self.machines[vm] = replace(machine, volumes={**machine.volumes, plug.volume_id: volume})
        self.touch(vm)
        self.later(self.timing.sync, lambda: self._sync(vm))

    def _watch_exclusivity(self, vm: str, volume: str) -> None:
        others = [m.name for m in self.machines.values() if m.name != vm and m.holds(volume)]
        if volume in self.exclusive and others:
            self.violations.append(f"{volume} was plugged into {vm} while {others} had it")

    def remove_volume(self, vm: str, volume: str) -> None:
        machine = self.machines.get(vm)
        if machine is None or machine.uid is None:
            raise NotFound(f"virtualmachine {vm} not found")
        if volume not in machine.volumes:
            raise Stale(f"Unable to remove volume [{volume}] because it does not exist")
        self.journal.append((self.now(), "remove", vm, volume))
        self.machines[vm] = replace(machine, volumes={k: v for k, v in machine.volumes.items() if k != volume})
        self.touch(vm)
        self.later(self.timing.sync, lambda: self._sync(vm))

    def remove_volume_from_instance(self, vm: str, volume: str) -> None:
        machine = self.machines.get(vm)
        if machine is None or machine.instance is None or volume not in machine.instance.volumes:
            raise Stale(f"Unable to remove volume [{volume}] because it does not exist")
        self.journal.append((self.now(), "remove from instance", vm, volume))
        volumes = {k: v for k, v in machine.instance.volumes.items() if k != volume}
        self.change_vm(vm, vmi_volumes=volumes)
        self._replace_pod(vm)

    def _sync(self, vm: str) -> None:
        """VM spec to VMI spec, by the declarative syncer; a re-added volume waits until its old status has gone."""
        machine = self.machines.get(vm)
        if machine is None or machine.uid is None or machine.instance is None or not machine.running:
            return
        instance = machine.instance
        volumes = {
            name: volume
            for name, volume in machine.volumes.items()
            if name in instance.volumes or name not in instance.statuses
        }
        if volumes == dict(instance.volumes):
            return
        statuses = dict(instance.statuses)
        for name in volumes.keys() - statuses.keys():
            statuses[name] = VolumeStatus(
                name=name,
                phase="Bound",
                reason="PVCNotReady",
                message="PVC is in phase Bound",
                claim=name,
                hotplug=True,
            )
        self.change_vm(vm, vmi_volumes=volumes, statuses=statuses)
        self._replace_pod(vm)

    def _replace_pod(self, vm: str) -> None:
        self._pod[vm] += 1
        pod = self._pod[vm]
        self.later(self.timing.attach(), lambda: self._pod_ready(vm, pod))

    def unstick(self, name: str) -> None:
        self.stuck.discard(name)
        for vm, machine in self.machines.items():
            if machine.holds(name):
                self._replace_pod(vm)

    def _pod_ready(self, vm: str, pod: int) -> None:
        machine = self.machines.get(vm)
        if machine is None or machine.instance is None or pod != self._pod[vm]:
            return
        instance = machine.instance
        statuses = {name: status for name, status in instance.statuses.items() if name in instance.volumes}
        if not self._waits_for_population(vm, instance) and not self.stuck & instance.volumes.keys():
            for number, name in enumerate(sorted(instance.volumes)):
                old = statuses[name]
                statuses[name] = old if old.attached else replace(old, phase="Ready", target=f"sd{number}", message="")
        self.change_vm(vm, statuses=statuses)
        self._sync(vm)

    def _waits_for_population(self, vm: str, instance: Instance) -> bool:
        """The pod is the first consumer of what waits for one: it starts the population and waits for it."""
        waiting = [
            (name, volume.data_volume.uid)
            for name, volume in self.volumes.items()
            if name in instance.volumes
            and volume.data_volume is not None
            and volume.data_volume.phase in infra_volumes.WAITING_FOR_CONSUMER
        ]
        for name, uid in waiting:
            self._populated_after_use(name, uid)
        if waiting:
            self._pod[vm] += 1
            pod = self._pod[vm]
            self.later(self.timing.populate + 0.1, lambda: self._pod_ready(vm, pod))
        return bool(waiting)

    def _populated_after_use(self, name: str, uid: str) -> None:
        self.later(self.timing.populate, lambda: self._populated(name, uid))
