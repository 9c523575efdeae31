"""A small management cluster in memory, as odd as the real one where it matters to the driver.

This file answers hot-plug requests, in each of KubeVirt's modes. With the older feature gate a request waits in the
VM's queue until the controller works it off, and a removal is answered by what VM spec has: that of an attach which
still waits is refused with "does not exist". Requests can be made to fail before, or after, or long before they are
carried out (``fail``, ``orphan_effect``). Time is the event loop's, so a test runs in looptime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kubevirt_csi.domain.machines import Machine, Plug, PluggedVolume
from kubevirt_csi.errors import FailedPrecondition, NotFound
from kubevirt_csi.ports.infra import Postponed, Stale
from tests.fakes.infra_machines import Mode, Virtualization

GATES_OFF = "Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API."


class InfraCluster(Virtualization):
    """Objects and their controllers. Tests reach in and change what they like, then call ``touch``."""

    def __init__(self) -> None:
        super().__init__()
        self.exclusive: set[str] = set()
        """Volumes that must never be plugged into two VMs; where they were is in ``violations``."""
        self.violations: list[str] = []
        self.journal: list[tuple[float, str, str, str]] = []
        """Requests that were accepted: time, verb, VM, volume."""
        self.plugs: list[Plug] = []

    def add_volume(self, vm: str, plug: Plug) -> None:
        machine = self._asked(vm)
        volume = PluggedVolume(
            name=plug.volume_id, claim=plug.volume_id, hotpluggable=True, serial=plug.serial, bus=plug.bus.value
        )
        self._require_addable(machine, volume.name)
        self._watch_exclusivity(vm, volume.name)
        self.plugs.append(plug)
        self.journal.append((self.now(), "add", vm, volume.name))
        if self.mode is Mode.LEGACY:
            self.change_vm(vm, volumes={**machine.volumes, volume.name: replace(volume, queued=True)})
            self.later(self.timing.queue, lambda: self._add_queued(vm, volume))
        else:
            self.change_vm(vm, volumes={**machine.volumes, volume.name: volume})
            self.later(self.timing.sync, lambda: self.sync(vm))

    def remove_volume(self, vm: str, volume: str) -> None:
        machine = self._asked(vm)
        plugged = machine.volumes.get(volume)
        if plugged is None or plugged.queued:
            raise Stale(f"Unable to remove volume [{volume}] because it does not exist")
        if volume in machine.leaving:
            raise Stale(f"a remove volume request for volume [{volume}] already exists and is still being processed")
        self.journal.append((self.now(), "remove", vm, volume))
        if self.mode is Mode.LEGACY:
            self.change_vm(vm, leaving=machine.leaving | {volume})
            self.later(self.timing.queue, lambda: self._remove_queued(vm, volume))
        else:
            self.change_vm(vm, volumes=without(machine.volumes, volume))
            self.later(self.timing.sync, lambda: self.sync(vm))

    def remove_volume_from_instance(self, vm: str, volume: str) -> None:
        machine = self.machines.get(vm)
        if machine is None or machine.instance is None:
            raise NotFound(f"virtualmachineinstance {vm} not found")
        if self.mode is Mode.OFF:
            raise FailedPrecondition(GATES_OFF)
        if self.mode is Mode.DECLARATIVE and machine.uid is not None:
            raise FailedPrecondition(f"VMI tenant-a/{vm} is owned by a VM")
        if machine.instance.phase != "Running":
            raise Stale("VMI is not running")
        if volume not in machine.instance.volumes:
            raise Stale(f"Unable to remove volume [{volume}] because it does not exist")
        self.journal.append((self.now(), "remove from instance", vm, volume))
        self._take_out_of_instance(vm, volume)

    def _asked(self, vm: str) -> Machine:
        """The VM that a request to its subresource is about."""
        machine = self.machines.get(vm)
        if machine is None or machine.uid is None:
            raise NotFound(f"virtualmachine {vm} not found")
        if self.mode is Mode.OFF:
            raise FailedPrecondition(GATES_OFF)
        if self.mode is Mode.LEGACY and machine.instance is not None and machine.instance.migrating:
            raise Postponed("Cannot handle volume requests while VMI migration is in progress")
        return machine

    def _require_addable(self, machine: Machine, name: str) -> None:
        if name in machine.leaving:
            raise Stale(f"unable to add volume since a remove volume request for volume [{name}] already exists")
        for found in machine.volumes.values():
            if found.name == name:
                raise Stale(f"Unable to add volume [{name}] because volume with that name already exists")
            if found.claim == name and not found.queued:
                raise Stale(f"Unable to add volume source [{name}] because it already exists")

    def _watch_exclusivity(self, vm: str, volume: str) -> None:
        others = [m.name for m in self.machines.values() if m.name != vm and m.holds(volume)]
        if volume in self.exclusive and others:
            self.violations.append(f"{volume} was plugged into {vm} while {others} had it")

    def _worked_off(self, vm: str) -> Machine | None:
        """The VM whose queue the controller works off now; it does not for one that is being deleted."""
        machine = self.machines.get(vm)
        return machine if machine is not None and machine.uid is not None and not machine.deleting else None

    def _add_queued(self, vm: str, volume: PluggedVolume) -> None:
        machine = self._worked_off(vm)
        if machine is None or volume.name not in machine.volumes:
            return
        self.change_vm(vm, volumes={**machine.volumes, volume.name: volume})
        self.plug_into_instance(vm, {volume.name: volume})

    def _remove_queued(self, vm: str, volume: str) -> None:
        machine = self._worked_off(vm)
        if machine is None or volume not in machine.leaving:
            return
        self.change_vm(vm, volumes=without(machine.volumes, volume), leaving=machine.leaving - {volume})
        self._take_out_of_instance(vm, volume)

    def _take_out_of_instance(self, vm: str, volume: str) -> None:
        instance = self.machines[vm].instance
        if instance is not None and volume in instance.volumes:
            self.change_vm(vm, vmi_volumes=without(instance.volumes, volume))
            self.replace_pod(vm)


def without(volumes: Mapping[str, PluggedVolume], name: str) -> dict[str, PluggedVolume]:
    return {key: volume for key, volume in volumes.items() if key != name}
