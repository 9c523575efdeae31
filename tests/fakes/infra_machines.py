"""VMs and VMIs of the fake infra cluster: how a change of VM spec gets into the guest, or does not.

VM spec changes at once, the VMI's spec a moment later, its status later still. One attachment pod carries all
hot-plugged volumes of a VM and is replaced for every change, so a change restarts the clock for all that are not
attached yet, and one volume that cannot be attached keeps back the others. An instance that is being deleted, or whose
VM is, is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from kubevirt_csi.domain.machines import Instance, Machine, PluggedVolume, VolumeStatus
from tests.fakes.infra_storage import Storage

OF_VM = ("uid", "volumes", "instance", "failure", "deleting", "leaving", "migrates_volumes")


class Mode(Enum):
    """How KubeVirt's feature gates are set."""

    DECLARATIVE = "declarative"
    LEGACY = "legacy"
    OFF = "off"


class Virtualization(Storage):
    """Machines and the controllers that look after them."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.DECLARATIVE
        self.foreign_machines: set[str] = set()
        """VMs that the selector does not match."""
        self.stuck: set[str] = set()
        """Volumes that the attachment pod cannot get."""
        self._pod: Counter[str] = Counter()

    def become(self, mode: Mode) -> None:
        """The gates change: what is queued is worked off all the same, VM spec is taken over if they say so."""
        self.mode = mode
        for vm in self.machines:
            self.later(self.timing.sync, lambda vm=vm: self.sync(vm))  # type: ignore[misc]

    def takes_over(self, machine: Machine) -> bool:
        """Whether VM spec is taken over into the instance by itself."""
        declared = self.mode is Mode.DECLARATIVE and not machine.migrates_volumes
        return declared and machine.uid is not None and not machine.deleting

    def have_vm(self, name: str, *, running: bool = True, uid: str = "") -> None:
        instance = Instance(uid=f"vmi-{self.version()}", phase="Running") if running else None
        self.machines[name] = Machine(name=name, uid=uid or f"vm-{self.version()}", instance=instance)
        self.touch(name)

    def change_vm(self, name: str, **changes: object) -> None:
        """Replaces fields of the machine (``OF_VM``), or of its instance: ``phase``, ``vmi_volumes`` and so on."""
        machine = self.machines[name]
        own = {key: value for key, value in changes.items() if key in OF_VM}
        of_instance = {key.removeprefix("vmi_"): value for key, value in changes.items() if key not in own}
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

    def delete_vm(self, name: str, *, gone_after: float | None = None) -> None:
        """The VM is marked for deletion: from now on KubeVirt does nothing with it but end its instance."""
        self.change_vm(name, deleting=True)
        if gone_after is not None:
            self.later(gone_after, lambda: self.forget_vm(name))

    def forget_vm(self, name: str) -> None:
        """A VM that is being deleted goes, with its instance."""
        if name in self.machines and self.machines[name].deleting:
            del self.machines[name]
            self.touch(name)

    def have_in_instance_alone(self, vm: str, name: str) -> None:
        """Plugged into the instance by somebody, and unknown to the VM."""
        self.have_attached(vm, name)
        self.change_vm(vm, volumes={})

    def start(self, name: str, *, phase: str = "Running") -> None:
        """A new instance, made from VM spec, into which its volumes are plugged again.

        One that is ``Scheduled`` runs when it has them all.
        """
        machine, instance = self.machines[name], Instance(uid=f"vmi-{self.version()}", phase=phase)
        self.machines[name] = replace(machine, instance=instance)
        self.touch(name)

        def plug_again() -> None:
            now = self.machines.get(name)
            if now is not None and now.instance is not None and now.instance.uid == instance.uid:
                self.plug_into_instance(name, now.volumes, anew=True)

        self.later(self.timing.sync, plug_again)

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

    def sync(self, vm: str) -> None:
        """VM spec to VMI spec, by the declarative syncer; a re-added volume waits until its old status has gone."""
        machine = self.machines.get(vm)
        if machine is None or machine.instance is None or not machine.running or not self.takes_over(machine):
            return
        instance = machine.instance
        volumes = {
            name: volume
            for name, volume in machine.volumes.items()
            if not volume.queued and (name in instance.volumes or name not in instance.statuses)
        }
        if volumes == dict(instance.volumes):
            return
        self.plug_into_instance(vm, volumes, anew=True)

    def plug_into_instance(self, vm: str, volumes: Mapping[str, PluggedVolume], *, anew: bool = False) -> None:
        """The volumes enter VMI spec, or become all that is in it."""
        instance = self.machines[vm].instance
        if instance is None:
            return
        wanted = dict(volumes) if anew else {**instance.volumes, **volumes}
        statuses = dict(instance.statuses)
        for name in wanted.keys() - statuses.keys():
            statuses[name] = VolumeStatus(
                name=name,
                phase="Bound",
                reason="PVCNotReady",
                message="PVC is in phase Bound",
                claim=name,
                hotplug=True,
            )
        self.change_vm(vm, vmi_volumes=wanted, statuses=statuses)
        self.replace_pod(vm)

    def replace_pod(self, vm: str) -> None:
        self._pod[vm] += 1
        pod = self._pod[vm]
        self.later(self.timing.attach(), lambda: self._pod_ready(vm, pod))

    def unstick(self, name: str) -> None:
        self.stuck.discard(name)
        for vm, machine in self.machines.items():
            if machine.holds(name):
                self.replace_pod(vm)

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
        scheduled = instance.phase == "Scheduled" and all(status.attached for status in statuses.values())
        self.change_vm(vm, statuses=statuses, phase="Running" if scheduled else instance.phase)
        self.sync(vm)

    def _waits_for_population(self, vm: str, instance: Instance) -> bool:
        """The pod is the first consumer of what waits for one: it starts the population and waits for it."""
        waiting = [name for name, volume in self.volumes.items() if name in instance.volumes and volume.waits_for_use]
        for name in waiting:
            self.later(self.timing.populate, lambda name=name: self.populated(name))  # type: ignore[misc]
        if waiting:
            self._pod[vm] += 1
            pod = self._pod[vm]
            self.later(self.timing.populate + 0.1, lambda: self._pod_ready(vm, pod))
        return bool(waiting)
