"""Attaching: a volume becomes a disk of a VM, and is reported so only when the guest that runs now has it.

What may be sent is decided from fresh reads, after the volume's entry was written and again before every send; what has
happened is read from the VMI's status. The VM is changed through its ``addvolume`` subresource only. A 202 means
"written down": from there on the answer is OK, or a code that says that the attach may still be under way.
Nothing from the caller's volume_context is believed: serial and bus come from the infra objects.
Source: KubeVirt pkg/virt-api/rest/volumes.go, pkg/virt-controller/watch/vmi/storage.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from kubevirt_csi.domain.access import Capability, require_supported
from kubevirt_csi.domain.attachments import Attachment
from kubevirt_csi.domain.infra_volumes import InfraVolume
from kubevirt_csi.domain.machines import Machine, Plug, PluggedVolume, Survey
from kubevirt_csi.domain.nodeids import NodeId, parse
from kubevirt_csi.domain.volumes import Bus, PublishContext
from kubevirt_csi.errors import (
    Aborted,
    DeadlineExceeded,
    DriverError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from kubevirt_csi.observe import context
from kubevirt_csi.operations.attachable import (
    made_for_many,
    require_hope,
    require_made_for,
    require_own_disk,
    require_takes_disks,
    require_usable,
)
from kubevirt_csi.operations.detachment import Detacher
from kubevirt_csi.operations.holding import Holding
from kubevirt_csi.operations.pacing import LIMIT_SECONDS, TAKE_BACK_SECONDS, Kind, Pacing, Turn
from kubevirt_csi.operations.stuck import StuckAttaches
from kubevirt_csi.ports.infra import Postponed, Stale
from kubevirt_csi.waiting import LOOK_AGAIN_SECONDS, attempts, until

ATTACH_SECONDS = 300.0
"""How long one operation waits for the guest to have the disk; a later call goes on from what it finds."""
POPULATE_SECONDS = 600.0
SENDS = 30
SURVEY_SECONDS = 5.0
"""How long the machines of a batch serve its members; those whose turn comes later read them themselves."""
ANSWER_SECONDS = 10.0
"""For one ``addvolume``; well below FREE_SECONDS - SEND_SECONDS of the entries, which have to outlive a late one."""
REFUSALS = (InvalidArgument, FailedPrecondition, NotFound, PermissionDenied)
"""Answers to ``addvolume`` that say it was not carried out and will not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One ControllerPublishVolume, as far as it is believed."""

    volume_id: str
    node: NodeId
    vm: str
    exclusive: bool
    """No other VM may hold the volume."""

    def plugged(self, machine: Machine) -> PluggedVolume | None:
        """The volume in VM spec, unless it is to leave; in the instance's spec only when the VM object is gone."""
        if machine.uid is None:
            return machine.instance.volumes.get(self.volume_id) if machine.instance is not None else None
        return machine.volumes.get(self.volume_id) if machine.wants(self.volume_id) else None

    def attached(self, machine: Machine) -> bool:
        """Wanted there, and in the guest that runs now: a disk that is being detached has the latter only."""
        return self.plugged(machine) is not None and machine.attached(self.volume_id)


class Attacher:
    """Plugs volumes into VMs."""

    def __init__(self, *, holding: Holding, pacing: Pacing, stuck: StuckAttaches, detacher: Detacher) -> None:
        self._holding = holding
        self._volumes = holding.volumes
        self._machines = holding.machines
        self._entries = holding.entries
        self._pacing = pacing
        self._stuck = stuck
        self._detacher = detacher

    async def publish(self, volume_id: str, node_id: str, capability: Capability) -> PublishContext:
        """Attaches the volume to the node's VM and returns what the node plugin needs to find the disk.

        Raises:
            InvalidArgument: capability not supported, or KubeVirt's admission refuses the disk.
            NotFound: no such volume, or no such VM, for this tenant; a malformed node id is that of no VM.
            FailedPrecondition: another node has the volume, the VM does not run, or the volume is being deleted.
            Unavailable, Aborted, DeadlineExceeded: not yet, with the reason; it may be under way.
        """
        try:
            node = parse(node_id)
        except InvalidArgument as error:
            raise NotFound(f"{error}, so there is no such node") from error
        vm = self._holding.nodes.vm_of(node)
        require_supported([capability])
        wanted = _Wanted(volume_id=volume_id, node=node, vm=vm, exclusive=not capability.mode.multi_node)
        volume, machine = await self._first_look(wanted)
        require_made_for(volume, capability)
        await self._require_exclusive(wanted, volume)
        require_own_disk(machine, volume_id, node=node.text)
        if wanted.attached(machine):
            return _context(wanted, volume, machine)
        if wanted.plugged(machine) is None:
            require_takes_disks(machine, volume_id, node=node.text)
            self._stuck.require_over(vm, volume_id)
            volume = await self._until_pluggable(volume)
        machine, written = await self._attach(wanted, volume, under_way=wanted.plugged(machine) is not None)
        return _context(wanted, written or await self._volume(wanted), machine)

    async def _first_look(self, wanted: _Wanted) -> tuple[InfraVolume, Machine]:
        """Volume and machine from the cache where it shows the usual beginning, else afresh.

        Usual is that nothing stands in the way. That is only a beginning, because what is sent is decided by what is
        read later; success or refusal would be answers, so they are never given by the cache.
        """
        volume, machine = await self._volumes.get(wanted.volume_id), await self._machines.get(wanted.vm)
        if volume is not None and machine is not None and not volume.attachments:
            with suppress(DriverError):
                require_usable(volume)
                require_takes_disks(machine, volume.id, node=wanted.node.text)
                return volume, machine
        return await self._look(wanted)

    async def _look(self, wanted: _Wanted) -> tuple[InfraVolume, Machine]:
        """Volume and machine, read afresh."""
        volume = await self._volume(wanted)
        machine = await self._machines.get(wanted.vm, fresh=True)
        return volume, _required(machine, wanted)

    async def _volume(self, wanted: _Wanted) -> InfraVolume:
        volume = await self._volumes.get(wanted.volume_id, fresh=True)
        if volume is None:
            raise NotFound(f"volume {wanted.volume_id} does not exist in the infra cluster for this tenant")
        return volume

    async def _require_exclusive(self, wanted: _Wanted, volume: InfraVolume) -> None:
        if wanted.exclusive:
            _require_nowhere(wanted, volume, await self._holding.elsewhere(volume, vm=wanted.vm, fresh=False))

    async def _until_pluggable(self, volume: InfraVolume) -> InfraVolume:
        """Waits until the volume is filled, or can only go on when it is plugged: KubeVirt holds up all others else."""
        found: InfraVolume | None = volume
        require_hope(volume)

        async def look() -> InfraVolume | None:
            nonlocal found
            found = await self._volumes.get(volume.id)
            if found is None or found.deleting or found.hopeless:
                found = await self._volumes.get(volume.id, fresh=True)
            if found is None:
                raise Aborted(f"volume {volume.id} was deleted while it was waited for")
            require_hope(found)
            context.progress(f"volume {volume.id} to be ready to attach: {found.describe()}")
            return found if found.decided else None

        ready = volume if volume.decided else None
        ready = ready or await until(look, changed=[lambda: self._volumes.changed(volume.id)], seconds=POPULATE_SECONDS)
        if ready is None:
            raise DeadlineExceeded(f"volume {volume.id} is not ready to attach: {(found or volume).describe()}")
        return ready

    async def _attach(
        self, wanted: _Wanted, volume: InfraVolume, *, under_way: bool
    ) -> tuple[Machine, InfraVolume | None]:
        """One turn of the VM: sends what has to be sent, and waits for the guest.

        Returns the machine, and the volume as it was written last if it cannot have changed since.
        """
        written: InfraVolume | None = None
        vm, volume_id = wanted.vm, wanted.volume_id
        lone = volume.populates_on_use or self._stuck.knows(vm, volume_id)
        kind = Kind.ATTACH_ALONE if lone else Kind.ATTACH
        async with self._pacing.turn(vm, volume_id, kind, under_way=under_way) as turn:
            if not under_way:
                written = await self._plug(wanted, volume, turn)
                turn.sent()
            found = await self._until_attached(wanted, turn)
            if isinstance(found, Machine):
                self._stuck.forget(vm, volume_id)
                return found, None if volume.populates_on_use else written
            await self._take_back(wanted, reason=found)
        raise Unavailable(
            f"volume {volume_id} was not attached to VM {vm} within {LIMIT_SECONDS:.0f} s while other disks waited, "
            f"so it was taken back and is tried again later; the reason was: {found}"
        )

    async def _plug(self, wanted: _Wanted, volume: InfraVolume, turn: Turn) -> InfraVolume | None:
        """Writes the entry and sends ``addvolume``, unless it is in VM spec already; decides anew after every Stale.

        Returns the volume as written, None if nothing was.
        """
        last: Stale | None = None
        own = False
        async for attempt in attempts(SENDS):
            try:
                volume, survey = await self._ground(wanted, volume, turn, fresh=attempt > 0)
                machine = _required(survey.node(wanted.vm), wanted)
                if wanted.plugged(machine) is not None:
                    return None
                require_usable(volume)
                require_takes_disks(machine, volume.id, node=wanted.node.text)
                entry = volume.attachments.get(wanted.vm)
                if entry is None or entry.vm_uid != machine.uid or not self._entries.may_send(entry):
                    _require_nowhere(wanted, volume, self._holding.others(volume, survey, vm=wanted.vm))
                    self._require_no_other_attempt(volume, entry)
                    volume, entry = await self._entries.put(
                        volume, node=wanted.node, machine=machine, exclusive=wanted.exclusive
                    )
                own = True
                await turn.comes()
                if not self._entries.may_send(entry):
                    raise Stale(f"the entry of volume {volume.id} is too old to send anything on the strength of it")  # noqa: TRY301 - a lost race
                await self._send(wanted, volume, entry)
            except Stale as error:
                last = error
            except (Postponed, *REFUSALS):
                if own:
                    await self._holding.forget(wanted.volume_id, wanted.vm, was_held=False)
                raise
            else:
                return volume
        raise Unavailable(f"VM {wanted.vm}: volume {wanted.volume_id} kept meeting other changes: {last}") from last

    async def _ground(
        self, wanted: _Wanted, volume: InfraVolume, turn: Turn, *, fresh: bool
    ) -> tuple[InfraVolume, Survey]:
        """What to decide by: the volume first, then all machines.

        In this order an entry that somebody else made meanwhile makes ours fail. Therefore the volume need not be read
        afresh, unless it has an entry already, which may be gone; and the machines may be those of the whole batch.
        """
        if fresh or volume.attachments:
            volume = await self._volume(wanted)
            return volume, await self._machines.survey()
        late = turn.started is None or _now() - turn.started > SURVEY_SECONDS
        return volume, await self._machines.survey() if turn.survey is None or late else turn.survey

    def _require_no_other_attempt(self, volume: InfraVolume, entry: Attachment | None) -> None:
        """A younger attempt of another process on the same VM goes first."""
        if entry is not None and not self._entries.may_renew(entry):
            raise Aborted(
                f"volume {volume.id}: an attach to {entry.node_id} that was begun by another process may still be "
                "carried out; ask again in a minute"
            )

    async def _send(self, wanted: _Wanted, volume: InfraVolume, entry: Attachment) -> None:
        plug = Plug(
            volume_id=volume.id,
            serial=volume.serial,
            bus=volume.bus or Bus.SCSI,
            shared=not wanted.exclusive or made_for_many(volume),
            bare_claim=volume.data_volume is None,
        )
        context.mark_written()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._machines.add_volume(wanted.vm, plug)
        except (Stale, Postponed, *REFUSALS):
            raise
        except TimeoutError as error:
            self._entries.unanswered(volume.id, entry)
            raise Unavailable(f"VM {wanted.vm}: no answer to the attach of volume {volume.id} in time") from error
        except BaseException:
            self._entries.unanswered(volume.id, entry)
            raise

    async def _until_attached(self, wanted: _Wanted, turn: Turn) -> Machine | str:
        """The machine, once the guest has the disk; or why not, when that lasts too long and others wait.

        Raises:
            Unavailable: it was taken out meanwhile, or KubeVirt says that it failed.
            DeadlineExceeded: neither for ATTACH_SECONDS.
        """
        started, heard = _now(), False
        reason = "nothing was read yet"

        async def look() -> Machine | str | None:
            nonlocal reason, heard
            machine = await self._machines.get(wanted.vm)
            if machine is None or wanted.plugged(machine) is None:
                if not heard and _now() - started < LOOK_AGAIN_SECONDS:
                    return None  # the cache has yet to hear of it
                machine = await self._machines.get(wanted.vm, fresh=True)
            elif wanted.attached(machine):
                machine = await self._machines.get_running(wanted.vm)
            heard = True
            if machine is None or wanted.plugged(machine) is None:
                raise Unavailable(f"VM {wanted.vm}: volume {wanted.volume_id} was taken out while being attached")
            if wanted.attached(machine):
                return machine
            reason = await self._why_not_yet(wanted, machine)
            context.progress(f"VM {wanted.vm} to attach volume {wanted.volume_id}: {reason}")
            _require_not_failed(wanted, machine, reason)
            late = _now() - started >= LIMIT_SECONDS
            return reason if late and turn.contended and machine.running else None

        found: Machine | str | None = await until(
            look, changed=[lambda: self._machines.changed(wanted.vm)], seconds=ATTACH_SECONDS
        )
        if found is None:
            raise DeadlineExceeded(
                f"VM {wanted.vm} has not attached volume {wanted.volume_id} within {ATTACH_SECONDS:.0f} s: {reason}"
            )
        return found

    async def _why_not_yet(self, wanted: _Wanted, machine: Machine) -> str:
        """What the machine says, and CDI about a volume that is not filled yet."""
        volume = await self._volumes.get(wanted.volume_id)
        words = [machine.whereabouts(wanted.volume_id)]
        return "; ".join(words + ([volume.describe()] if volume is not None and not volume.filled else []))

    async def _take_back(self, wanted: _Wanted, *, reason: str) -> None:
        vm, volume_id = wanted.vm, wanted.volume_id
        self._stuck.took_back(vm, volume_id, reason=reason)
        await self._detacher.take_out(volume_id, vm)
        await self._detacher.until_gone(volume_id, vm, seconds=TAKE_BACK_SECONDS)
        await self._holding.forget(volume_id, vm, was_held=True)


def _required(machine: Machine | None, wanted: _Wanted) -> Machine:
    if machine is None:
        raise NotFound(f"node {wanted.node.text}: no VM {wanted.vm} of this tenant exists in the infra cluster")
    return machine


def _require_nowhere(wanted: _Wanted, volume: InfraVolume, nodes: Sequence[str]) -> None:
    if wanted.exclusive and nodes:
        raise FailedPrecondition(
            f"volume {volume.id} can be on one node at a time, and {', '.join(nodes)} has it or is getting it; "
            "it has to be detached there first"
        )


def _context(wanted: _Wanted, volume: InfraVolume, machine: Machine) -> PublishContext:
    """From the VM's disk entry and the claim, never from the request; ``volume`` was read after the last write."""
    disk = wanted.plugged(machine)
    status = machine.instance.statuses.get(volume.id) if machine.instance is not None else None
    overhead = status.overhead if status is not None else None
    try:
        bus = Bus(disk.bus) if disk is not None and disk.bus else volume.bus or Bus.SCSI
    except ValueError as error:
        raise FailedPrecondition(
            f"VM {wanted.vm} has volume {volume.id} on another bus than {' and '.join(bus.value for bus in Bus)}, "
            "where its serial cannot be told; take it out by hand"
        ) from error
    return PublishContext(
        serial=(disk.serial if disk is not None else None) or volume.serial,
        bus=bus,
        size_bytes=volume.size_bytes if overhead is None else volume.least_bytes(overhead),
        content=volume.content,
        override=volume.override_in_force,
    )


def _require_not_failed(wanted: _Wanted, machine: Machine, reason: str) -> None:
    """Ends a wait that has no prospect; it was sent, so the answer is never a final one."""
    if machine.deleting:
        raise Unavailable(f"VM {wanted.vm} is being deleted and will not attach volume {wanted.volume_id}: {reason}")
    status = machine.instance.statuses.get(wanted.volume_id) if machine.instance is not None else None
    if status is not None and status.phase.endswith("Failed"):
        raise Unavailable(f"VM {wanted.vm}: attaching volume {wanted.volume_id} failed: {reason}")


def _now() -> float:
    return asyncio.get_running_loop().time()
