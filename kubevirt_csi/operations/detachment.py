"""Detaching: a volume leaves a VM, and is reported gone only when VM spec, VMI spec and VMI status are free of it.

The phase does not matter, nor the access mode, nor whether the DataVolume still exists. While the VM has the volume,
the VM is changed, never its instance: KubeVirt undoes or refuses the latter. What only the instance has (its VM is
gone, or somebody plugged it into the instance alone) the instance is asked for; KubeVirt allows that in some modes and
states only, and otherwise the instance has to end.
Source: KubeVirt pkg/storage/hotplug/hotplug.go, pkg/virt-api/rest/volumes.go.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import structlog

from kubevirt_csi.domain.infra_volumes import InfraVolume
from kubevirt_csi.domain.machines import Machine
from kubevirt_csi.domain.nodeids import parse
from kubevirt_csi.errors import (
    DeadlineExceeded,
    DriverError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from kubevirt_csi.observe import context
from kubevirt_csi.operations.holding import Holding, held_as
from kubevirt_csi.operations.pacing import Kind, Pacing
from kubevirt_csi.operations.stuck import StuckAttaches
from kubevirt_csi.ports.infra import Stale
from kubevirt_csi.waiting import attempts, until

DETACH_SECONDS = 300.0
"""How long one operation waits for the guest to let go; a later call goes on from what it finds."""
SENDS = 30
QUEUE_SECONDS = 60.0
"""How long an attach may wait in the VM's queue before its removal is given up; KubeVirt works it off in a second."""
ALONE_SECONDS = 10.0
"""How long KubeVirt gets for taking out of the instance what the VM has not, before the instance is asked itself."""

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
        machine = await self._machines.get(vm)
        followed = machine is not None and _is_in_both(machine, volume_id) and _is_usual(machine, volume_id)
        if not followed:
            machine = await self._machines.get(vm, fresh=True)
        if machine is None:
            await self._require_free(volume_id, vm)
        was_held = machine is not None and machine.holds(volume_id)
        before_gone: InfraVolume | None = None
        if machine is not None and was_held:
            await self._require_ours(volume_id, vm)
            _require_removable(machine, volume_id)
            under_way = not _is_to_be_sent(machine, volume_id)
            async with self._pacing.turn(vm, volume_id, Kind.DETACH, under_way=under_way) as turn:
                await turn.comes()
                await self.take_out(volume_id, vm, followed=followed)
                turn.sent()
                before_gone = await self.until_gone(volume_id, vm, seconds=DETACH_SECONDS, followed=followed)
        await self._holding.forget(volume_id, vm, was_held=was_held, before_gone=before_gone)
        self._stuck.forget(vm, volume_id)

    async def _require_free(self, volume_id: str, vm: str) -> None:
        """Neither VM nor VMI exists for us: then it must not be a VM outside the selector that has the disk."""
        if any(machine.name == vm for machine in await self._machines.holders(volume_id, fresh=True)):
            raise NotFound(f"node {self._holding.nodes.node_id(vm)}: no VM of this tenant has that name")

    async def _require_ours(self, volume_id: str, vm: str) -> None:
        """A volume whose objects are all gone may be taken out; one that only lacks our labels is somebody else's."""
        volumes = self._holding.volumes
        known = await volumes.get(volume_id) or await volumes.get(volume_id, fresh=True)
        if known is None and await volumes.is_foreign(volume_id):
            raise NotFound(f"volume {volume_id} does not exist for this tenant; VM {vm} was not changed")

    async def take_out(self, volume_id: str, vm: str, *, followed: bool = False) -> None:
        """Sends the removal, if there is anything left to send. To be called in a turn of the VM's pacing.

        Args:
            volume_id: the volume.
            vm: the VM.
            followed: the cache has shown the disk in VM and instance: it knows about the disk what is to be known.

        Raises:
            FailedPrecondition: the disk is not this driver's to remove.
            Unavailable: a migration is in progress, or the instance of a VM that is gone does not let go.
        """
        last: Exception | None = None
        async for attempt in attempts(SENDS):
            machine = await self._machines.get(vm, fresh=attempt > 0 or not followed)
            if machine is None or not machine.holds(volume_id):
                return
            _require_removable(machine, volume_id)
            if not _is_to_be_sent(machine, volume_id):
                return
            try:
                if machine.uid is None:
                    refusal = await self._ask_instance(machine, volume_id)
                    if refusal:
                        raise Unavailable(refusal)
                elif machine.volumes[volume_id].queued:
                    await self._until_taken_over(volume_id, vm)
                    continue
                else:
                    context.mark_written()
                    await self._machines.remove_volume(vm, volume_id)
            except (Stale, NotFound) as error:
                last = error
            else:
                return
        raise Unavailable(f"VM {vm}: removal of volume {volume_id} kept meeting other changes: {last}") from last

    async def _until_taken_over(self, volume_id: str, vm: str) -> None:
        """Waits until an attach has left the VM's queue: until then a removal is refused, and the attach still done."""

        async def look() -> bool | None:
            machine = await self._machines.get(vm)
            plugged = machine.volumes.get(volume_id) if machine is not None else None
            context.progress(f"VM {vm} to take the attach of volume {volume_id} out of its queue, to remove it then")
            return plugged is None or not plugged.queued or None

        if not await until(look, changed=[lambda: self._machines.changed(vm)], seconds=QUEUE_SECONDS):
            raise Unavailable(
                f"VM {vm}: the attach of volume {volume_id} still waits in the VM's queue (status.volumeRequests) "
                f"after {QUEUE_SECONDS:.0f} s and cannot be taken back before; does virt-controller run?"
            )

    async def _ask_instance(self, machine: Machine, volume_id: str) -> str:
        """Asks the instance to let go of what the VM has not; why KubeVirt refuses it and what to do, empty otherwise.

        Raises:
            Stale, NotFound: the instance has changed.
        """
        instance = machine.live_instance
        if instance is None or instance.deleting or volume_id not in instance.volumes:
            return ""
        has = f"VM {machine.name}: volume {volume_id} is in its VMI alone"
        if not machine.running:
            phase = instance.phase or "unknown"
            return f"{has}, and in phase {phase} KubeVirt takes nothing out of it; {_to_end(machine)}"
        context.mark_written()
        try:
            await self._machines.remove_volume_from_instance(machine.name, volume_id)
        except (InvalidArgument, FailedPrecondition) as error:
            return (
                f"{has}, and KubeVirt refuses to take it out of the VMI, for which it needs the feature gate "
                f"HotplugVolumes: {error}; otherwise {_to_end(machine)}"
            )
        return ""

    async def until_gone(
        self, volume_id: str, vm: str, *, seconds: float, followed: bool = False
    ) -> InfraVolume | None:
        """Waits until the volume is in none of the places.

        What stays in the instance alone, although the syncer should take it out, the instance is asked for. A fresh
        read confirms it, unless the cache has shown the disk in VM and instance first, and then both without it, and
        there is an entry: its removal, guarded by what was read before, fails when the VM was given the disk anew. The
        VM's half alone proves nothing (what the cache knows of the instance may be older), nor does an object that is
        gone from the cache.

        Returns:
            the volume with its entry as the cache had it then, None if VM and instance were read.

        Raises:
            DeadlineExceeded: it still is somewhere, with where and why.
        """
        rest, refusal = "nothing was read yet", ""
        alone = _Alone()
        before: InfraVolume | None = None

        async def look() -> bool | None:
            nonlocal rest, refusal, before
            for fresh in (False, True):
                machine = await self._machines.get(vm, fresh=fresh)
                if machine is not None and machine.holds(volume_id):
                    if alone.is_to_be_asked(machine, volume_id):
                        refusal = await self._asked(machine, volume_id, alone)
                    rest = "; ".join(filter(None, [machine.whereabouts(volume_id), refusal]))
                    context.progress(f"VM {vm} to let go of volume {volume_id}: {rest}")
                    return None
                if followed and _is_whole(machine):
                    before = await self._with_entry(volume_id, vm)
                    if before is not None:
                        return True
            return True

        if not await until(look, changed=[lambda: self._machines.changed(vm)], seconds=seconds):
            raise DeadlineExceeded(f"VM {vm} has not let go of volume {volume_id} within {seconds:.0f} s: {rest}")
        return before

    async def _with_entry(self, volume_id: str, vm: str) -> InfraVolume | None:
        """The volume from the cache, if it has an entry of the VM there."""
        volume = await self._holding.volumes.get(volume_id)
        return volume if volume is not None and volume.claim is not None and vm in volume.attachments else None

    async def _asked(self, machine: Machine, volume_id: str, alone: _Alone) -> str:
        with suppress(Stale, NotFound):
            refusal = await self._ask_instance(machine, volume_id)
            alone.asked = True
            return refusal
        return ""


@dataclass(slots=True)
class _Alone:
    """For how long only the instance has had the volume: KubeVirt takes such a disk out by itself, in most modes."""

    since: float | None = None
    asked: bool = False

    def is_to_be_asked(self, machine: Machine, volume_id: str) -> bool:
        """Whether the instance has to be asked itself, which is done once."""
        if not machine.only_instance_has(volume_id):
            self.since = None
            return False
        if self.since is None:
            self.since = _now()
        migrating = machine.instance is not None and machine.instance.migrating
        return not (self.asked or machine.deleting or migrating) and _now() - self.since >= ALONE_SECONDS


def _is_in_both(machine: Machine, volume_id: str) -> bool:
    """Whether the running instance is to have the disk, as well as the VM."""
    instance = machine.live_instance
    return volume_id in machine.volumes and instance is not None and volume_id in instance.volumes


def _is_whole(machine: Machine | None) -> bool:
    """Whether both VM and instance are there."""
    return machine is not None and machine.uid is not None and machine.live_instance is not None


def _is_usual(machine: Machine, volume_id: str) -> bool:
    """Whether a removal is to be sent to the VM, and nothing forbids it."""
    try:
        _require_removable(machine, volume_id)
    except DriverError:
        return False
    return machine.uid is not None and _is_to_be_sent(machine, volume_id)


def _to_end(machine: Machine) -> str:
    if machine.uid is None:
        return "delete the VMI: its disks are free when it has ended"
    return "restart the VM: what only the VMI has does not come back"


def _is_to_be_sent(machine: Machine, volume_id: str) -> bool:
    """Whether a removal has anything to send: KubeVirt was not asked yet, and would carry it out."""
    if machine.uid is None:
        return True
    return machine.wants(volume_id) and not machine.deleting


def _require_removable(machine: Machine, volume_id: str) -> None:
    """Passes for a disk that this driver plugged, in a VM that takes changes now."""
    plugged = machine.volumes.get(volume_id)
    others = held_as(machine, volume_id)
    if others or (plugged is not None and (plugged.claim != volume_id or not plugged.hotpluggable)):
        how = f"under the name {', '.join(others)}" if others else "as a permanent disk or for another claim"
        raise FailedPrecondition(
            f"VM {machine.name} has volume {volume_id} {how}, which this driver did not do; take it out by hand"
        )
    migrating = machine.instance is not None and machine.instance.migrating
    if migrating and _is_to_be_sent(machine, volume_id):
        raise Unavailable(f"VM {machine.name}: migration in progress; volume {volume_id} is detached when it is over")


def _now() -> float:
    return asyncio.get_running_loop().time()
