"""The ``Machines`` port: VMs and VMIs of the infra namespace, and hot-plug by the VM's subresources.

The subresource works in both of KubeVirt's hot-plug modes, a patch of the VM in one of them only. An accepted request
means "written down". Most refusals by state come as 409, whatever the reason, so they all say: read again and decide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from kubevirt_csi.domain.machines import Instance, Machine, Plug, Survey
from kubevirt_csi.errors import DriverError, FailedPrecondition, InvalidArgument, NotFound
from kubevirt_csi.infra import virtualmachines
from kubevirt_csi.infra.answers import Missing, Refused
from kubevirt_csi.infra.cache import Cache, pages, unreadable
from kubevirt_csi.infra.changes import Changes
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.resources import (
    INSTANCE_ACTIONS,
    INSTANCES,
    VIRTUAL_MACHINE_ACTIONS,
    VIRTUAL_MACHINES,
    Call,
    Object,
    Resource,
    Verb,
)
from kubevirt_csi.infra.selectors import Selector
from kubevirt_csi.infra.together import Together
from kubevirt_csi.infra.virtualmachines import VirtualMachine
from kubevirt_csi.infra.watching import parsed
from kubevirt_csi.ports.infra import Postponed

CHANGE_SECONDS = 10.0
"""Longer than admission takes, and short enough that nothing is sent long after the caller decided to (the fence of
``domain.attachments`` leaves 15 seconds between the last sending and the first moment that others act)."""
Item = TypeVar("Item", VirtualMachine, Instance)

GATES = ("DeclarativeHotplugVolumes", "HotplugVolumes")


class InfraMachines:
    """All machines of the namespace; ``selector`` says which VMs can be nodes of the tenant."""

    def __init__(self, connection: Connection, *, selector: Selector) -> None:
        self._connection = connection
        self._selector = selector
        self._changes = Changes()
        self._vms: Cache[VirtualMachine] = Cache(
            connection, VIRTUAL_MACHINES, parse=virtualmachines.virtual_machine, changes=self._changes
        )
        self._instances: Cache[Instance] = Cache(
            connection, INSTANCES, parse=virtualmachines.instance, changes=self._changes
        )
        self._running = Together(self._read_instance)
        self.caches = (self._vms, self._instances)

    async def get(self, name: str, *, fresh: bool = False) -> Machine | None:
        """The machine; None when neither VM nor VMI exists. A VM outside the configured selector does not exist.

        A VMI whose VM is gone cannot be selected by the VM's labels any more; it is returned, so that its disks are
        not forgotten.
        """
        if not fresh:
            return self._node(virtualmachines.join(name, self._vms.find(name), self._instances.find(name)))
        vm = await self._read(VIRTUAL_MACHINES, name, virtualmachines.virtual_machine)
        return self._node(virtualmachines.join(name, vm, await self._read_instance(name)))

    async def get_running(self, name: str) -> Machine | None:
        """As ``get`` from the cache, with the instance read afresh; the VM's half is of before that read."""
        vm = self._vms.find(name)
        return self._node(virtualmachines.join(name, vm, await self._running.read(name)))

    async def holders(self, claim: str, *, fresh: bool = False) -> list[Machine]:
        """Every machine of the namespace that has the claim in VM spec, VMI spec or VMI status."""
        if fresh:
            return (await self.survey()).holders(claim)
        vms = {name: self._vms.find(name) for name in self._vms.names}
        instances = {name: self._instances.find(name) for name in self._instances.names}
        return self._survey(vms, instances).holders(claim)

    async def survey(self) -> Survey:
        """Every machine, read afresh. VMs are listed first: a volume enters VM spec first, and leaves the VMI last."""
        vms = await self._list(VIRTUAL_MACHINES, virtualmachines.virtual_machine)
        return self._survey(vms, await self._list(INSTANCES, virtualmachines.instance))

    async def add_volume(self, vm: str, plug: Plug) -> None:
        """Sends ``addvolume`` to the VM's subresource; accepted means written down, not attached."""
        await self._change(VIRTUAL_MACHINE_ACTIONS, vm, "addvolume", virtualmachines.add_volume_body(plug))

    async def remove_volume(self, vm: str, volume_id: str) -> None:
        """Sends ``removevolume`` to the VM's subresource."""
        await self._change(VIRTUAL_MACHINE_ACTIONS, vm, "removevolume", {"name": volume_id})

    async def remove_volume_from_instance(self, vm: str, volume_id: str) -> None:
        """Sends ``removevolume`` to the VMI, for a disk that only the instance has."""
        await self._change(INSTANCE_ACTIONS, vm, "removevolume", {"name": volume_id})

    def changed(self, name: str) -> Awaitable[None]:
        """The next change of the VM or VMI in the cache, or a re-established watch."""
        return self._changes.after_now(name)

    async def _change(self, resource: Resource, name: str, subresource: str, body: Object) -> None:
        call = Call(verb=Verb.UPDATE, resource=resource, name=name, subresource=subresource, body=body)
        try:
            await self._connection.request(call, seconds=CHANGE_SECONDS)
        except Missing as error:
            raise NotFound(str(error)) from error
        except Refused as error:
            raise _refusal(error) from error

    def _node(self, machine: Machine | None) -> Machine | None:
        """The machine, unless its VM is outside the selector."""
        known = machine is not None and machine.uid is not None
        return None if machine is None or (known and not self._selector.matches(machine.labels)) else machine

    def _survey(self, vms: Mapping[str, VirtualMachine | None], instances: Mapping[str, Instance | None]) -> Survey:
        joined = {name: virtualmachines.join(name, vms.get(name), instances.get(name)) for name in {*vms, *instances}}
        machines = {name: machine for name, machine in joined.items() if machine is not None}
        nodes = frozenset(name for name, machine in machines.items() if self._node(machine) is not None)
        return Survey(machines=machines, nodes=nodes)

    async def _read_instance(self, name: str) -> Instance | None:
        return await self._read(INSTANCES, name, virtualmachines.instance)

    async def _read(self, resource: Resource, name: str, parse: Callable[[Object], Item]) -> Item | None:
        try:
            found = await self._connection.request(Call(verb=Verb.GET, resource=resource, name=name))
        except Missing:
            return None
        return self._parsed(resource, name, found, parse)

    async def _list(self, resource: Resource, parse: Callable[[Object], Item]) -> dict[str, Item]:
        items = {}
        async for page in pages(self._connection, resource, selector={}):
            for found in page.objects:
                name = str(found["metadata"]["name"])
                items[name] = self._parsed(resource, name, found, parse)
        return items

    def _parsed(self, resource: Resource, name: str, found: Object, parse: Callable[[Object], Item]) -> Item:
        try:
            return parsed(found, parse)
        except ValueError as error:
            raise unreadable(self._connection, resource, name, error) from error


def _refusal(error: Refused) -> DriverError:
    """Tells what has to change first, or passes by itself, from a request that is wrong.

    Source: KubeVirt pkg/virt-api/rest/volumes.go (from 1.6 on), subresource.go (before), pkg/storage/admitters.
    """
    if "feature gate" in error.message:
        advice = f"enable the feature gate {GATES[0]} (KubeVirt 1.6 and later) or {GATES[1]} in the KubeVirt object"
        return FailedPrecondition(f"{error}; {advice}")
    if "is owned by a VM" in error.message:
        advice = f"with the feature gate {GATES[1]} off only the VM can be changed; delete the VMI to free its disks"
        return FailedPrecondition(f"{error}; {advice}")
    if "migration is in progress" in error.message or "until snapshot" in error.message:
        return Postponed(f"{error}; it can be repeated when that has ended")
    return InvalidArgument(str(error))
