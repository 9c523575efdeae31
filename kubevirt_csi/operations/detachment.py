"""Detaching: a volume leaves a VM, and is reported gone only when VM spec, VMI spec and VMI status are free of it.

The phase does not matter, nor the access mode, nor whether the DataVolume still exists. While there is a VM, the VM is
changed, never its instance: KubeVirt undoes or refuses the latter. Only when the VM object is gone is the instance
asked to let go; if it may not, it has to end.
Source: KubeVirt pkg/storage/hotplug/hotplug.go, pkg/virt-api/rest/volumes.go.
"""

from __future__ import annotations

import structlog

from kubevirt_csi.domain.machines import Machine
from kubevirt_csi.domain.nodeids import parse
from kubevirt_csi.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.operations.holding import Holding, held_as
from kubevirt_csi.operations.pacing import Kind, Pacing
from kubevirt_csi.operations.stuck import StuckAttaches
from kubevirt_csi.operations.waiting import attempts, until
from kubevirt_csi.ports.infra import Stale

DETACH_SECONDS = 300.0
"""How long one operation waits for the guest to let go; a later call goes on from what it finds."""
SENDS = 30

log = structlog.get_logger()


class Detacher:
    """Takes volumes out of VMs."""

    def __init__(self, *, holding: Holding, pacing: Pacing, stuck: StuckAttaches) -> None:
        self._holding = holding
        self._machines = holding.machines
        self._pacing = pacing
        self._stuck = stuck

    async def unpublish(self, volume_id: str, node_id: str) -> None:
        """Detaches the volume from the node, or from every node that has it when the id is empty.

        Success also when there is nothing to detach: volume or VM unknown, or never attached. A node id of a foreign
        namespace is such a case, because a VM can only have claims of its own namespace.

        Raises:
            InvalidArgument: the node id is malformed.
            NotFound: a VM that is none of this tenant's, or a volume that is none of this tenant's, is involved.
            FailedPrecondition: the disk is a permanent one, or was plugged under another name by somebody else.
            Unavailable, Aborted, DeadlineExceeded: it is not gone yet, with the reason.
        """
        for vm in await self._vms(volume_id, node_id):
            await self._detach(volume_id, vm)

    async def _vms(self, volume_id: str, node_id: str) -> list[str]:
        if node_id:
            node = parse(node_id)
            if self._holding.nodes.has(node):
                return [node.vm]
            log.warning("unpublish foreign namespace", volume_id=volume_id, node_id=node_id)
            return []
        volume = await self._holding.volumes.get(volume_id, fresh=True)
        holders = {machine.name for machine in await self._machines.holders(volume_id, fresh=True)}
        return sorted(holders | set(volume.attachments if volume is not None else ()))

    async def _detach(self, volume_id: str, vm: str) -> None:
        machine = await self._machines.get(vm, fresh=True)
        if machine is None:
            await self._require_free(volume_id, vm)
        was_held = machine is not None and machine.holds(volume_id)
        if machine is not None and was_held:
            await self._require_ours(volume_id, vm)
            _require_removable(machine, volume_id)
            under_way = volume_id not in machine.volumes and machine.uid is not None
            async with self._pacing.turn(vm, volume_id, Kind.DETACH, under_way=under_way) as turn:
                await self.take_out(volume_id, vm)
                turn.sent()
                await self.until_gone(volume_id, vm, seconds=DETACH_SECONDS)
        await self._holding.forget(volume_id, vm, was_held=was_held)
        self._stuck.forget(vm, volume_id)

    async def _require_free(self, volume_id: str, vm: str) -> None:
        """Neither VM nor VMI exists for us: then it must not be a VM outside the selector that has the disk."""
        if any(machine.name == vm for machine in await self._machines.holders(volume_id, fresh=True)):
            raise NotFound(f"node {self._holding.nodes.node_id(vm)}: no VM of this tenant has that name")

    async def _require_ours(self, volume_id: str, vm: str) -> None:
        """A volume whose objects are all gone may be taken out; one that only lacks our labels is somebody else's."""
        volumes = self._holding.volumes
        if await volumes.get(volume_id, fresh=True) is None and await volumes.is_foreign(volume_id):
            raise NotFound(f"volume {volume_id} does not exist for this tenant; VM {vm} was not changed")

    async def take_out(self, volume_id: str, vm: str) -> None:
        """Sends the removal, if there is anything left to send. To be called in a turn of the VM's pacing.

        Raises:
            FailedPrecondition: the disk is not this driver's to remove.
            Unavailable: a migration is in progress, or the instance of a VM that is gone does not let go.
        """
        last: Exception | None = None
        async for _ in attempts(SENDS):
            machine = await self._machines.get(vm, fresh=True)
            if machine is None or not machine.holds(volume_id):
                return
            _require_removable(machine, volume_id)
            try:
                if machine.uid is None:
                    await self._ask_instance(machine, volume_id)
                elif volume_id in machine.volumes:
                    context.mark_written()
                    await self._machines.remove_volume(vm, volume_id)
            except (Stale, NotFound) as error:
                last = error
            else:
                return
        raise Unavailable(f"VM {vm}: removal of volume {volume_id} kept meeting other changes: {last}") from last

    async def _ask_instance(self, machine: Machine, volume_id: str) -> None:
        """The VM object is gone: asks its instance, which KubeVirt may refuse."""
        if machine.instance is None or volume_id not in machine.instance.volumes:
            return
        context.mark_written()
        try:
            await self._machines.remove_volume_from_instance(machine.name, volume_id)
        except (InvalidArgument, FailedPrecondition) as error:
            raise Unavailable(
                f"VM {machine.name} is gone, but its instance still has volume {volume_id}, and KubeVirt refuses to "
                f"take it out (it needs the feature gate HotplugVolumes for that, or the instance to end): {error}"
            ) from error

    async def until_gone(self, volume_id: str, vm: str, *, seconds: float) -> None:
        """Waits until the volume is in none of the three places, confirmed by a fresh read.

        Raises:
            DeadlineExceeded: it still is somewhere, with where and why.
        """
        rest = "nothing was read yet"

        async def look() -> bool | None:
            nonlocal rest
            for fresh in (False, True):
                machine = await self._machines.get(vm, fresh=fresh)
                if machine is not None and machine.holds(volume_id):
                    rest = whereabouts(machine, volume_id)
                    context.progress(f"VM {vm} to let go of volume {volume_id}: {rest}")
                    return None
            return True

        if not await until(look, changed=[lambda: self._machines.changed(vm)], seconds=seconds):
            raise DeadlineExceeded(f"VM {vm} has not let go of volume {volume_id} within {seconds:.0f} s: {rest}")


def _require_removable(machine: Machine, volume_id: str) -> None:
    """Passes for a disk that this driver plugged, in a VM that takes changes now."""
    plugged = machine.volumes.get(volume_id)
    others = held_as(machine, volume_id)
    if others or (plugged is not None and (plugged.claim != volume_id or not plugged.hotpluggable)):
        how = f"under the name {', '.join(others)}" if others else "as a permanent disk or for another claim"
        raise FailedPrecondition(
            f"VM {machine.name} has volume {volume_id} {how}, which this driver did not do; take it out by hand"
        )
    to_be_sent = plugged is not None or machine.uid is None
    if to_be_sent and machine.instance is not None and machine.instance.migrating:
        raise Unavailable(f"VM {machine.name}: migration in progress; volume {volume_id} is detached when it is over")


def whereabouts(machine: Machine, volume_id: str) -> str:
    """Where in the machine the volume is, and what KubeVirt says about it; for people."""
    found = ["VM spec"] if volume_id in machine.volumes else []
    instance = machine.instance
    if instance is not None and volume_id in instance.volumes:
        found.append("VMI spec")
    if instance is not None and volume_id in instance.statuses:
        found.append(f"VMI status ({instance.statuses[volume_id].describe()})")
    text = "in " + ", ".join(found) if found else "in neither spec nor status"
    return f"{text}; VM reports: {machine.failure}" if machine.failure else text
