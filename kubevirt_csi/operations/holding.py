"""Who holds a volume, and the end of an attachment entry: what attaching, detaching and deleting have to agree on.

A VM holds a volume by claim, under whatever name, in its spec (running or not), in its instance's spec or in its
instance's status. An entry on the claim counts as well, until it is known that nothing can come of it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubevirt_csi.domain.infra_volumes import InfraVolume
from kubevirt_csi.domain.machines import Machine, Survey
from kubevirt_csi.domain.nodeids import NodeNamespace
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import Aborted, NotFound, Unavailable
from kubevirt_csi.operations.entries import Entries
from kubevirt_csi.ports.infra import Machines, Stale, Volumes
from kubevirt_csi.waiting import attempts

WRITES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Reads who holds a volume, and forgets who no longer does."""

    volumes: Volumes
    machines: Machines
    entries: Entries
    nodes: NodeNamespace

    async def elsewhere(self, volume: InfraVolume, *, vm: str | None, fresh: bool) -> list[str]:
        """The node ids, as spelt in the entries, of other VMs that hold the volume or may be about to.

        Args:
            volume: with its entries; an entry counts until it is free.
            vm: the VM that may hold it; None for deletion, when nobody may.
            fresh: read afresh, for a decision; otherwise only a suspicion is.
        """
        if not fresh:
            found = {machine.name for machine in await self.machines.holders(volume.id)}
            if not (found | set(volume.attachments)) - {vm}:
                return []
        return self.others(volume, await self.machines.survey(), vm=vm)

    def others(self, volume: InfraVolume, survey: Survey, *, vm: str | None) -> list[str]:
        """As ``elsewhere``, of machines that were read afresh, after the volume."""
        found = {machine.name for machine in survey.holders(volume.id)}
        found |= {entry.vm for entry in volume.attachments.values() if not self.entries.is_free(volume.id, entry)}
        return sorted(self.spelling(volume, name) for name in found - {vm})

    def spelling(self, volume: InfraVolume | None, vm: str) -> str:
        """The VM's node id, as the caller spelt it when it attached the volume."""
        entry = volume.attachments.get(vm) if volume is not None else None
        return entry.node_id if entry is not None else self.nodes.node_id(vm)

    async def forget(self, volume_id: str, vm: str, *, was_held: bool, before_gone: InfraVolume | None = None) -> None:
        """Removes the VM's entry, once a fresh read shows that the VM does not hold the volume.

        The content turns ``used`` in the same write. A volume that no longer exists has nothing to forget.

        Args:
            volume_id: the volume.
            vm: the VM.
            was_held: it was plugged before: then the content is written even if there is no entry.
            before_gone: the volume with its entry, as it was before a fresh read that showed that the VM does not hold
                it. That need not be read again, because the write fails when an entry was made since.

        Raises:
            Aborted: the VM holds it again, or an attach of another process may still come of the entry.
            Unavailable: the claim kept changing.
        """
        async for attempt in attempts(WRITES):
            volume = before_gone if attempt == 0 else None
            is_known_gone = volume is not None
            volume = volume or await self.volumes.get(volume_id, fresh=True)
            if volume is None or volume.claim is None:
                return
            entry = volume.attachments.get(vm)
            if entry is None and not (was_held and volume.content is Content.NONE):
                return
            machine = None if is_known_gone else await self.machines.get(vm, fresh=True)
            if machine is not None and machine.holds(volume_id):
                raise Aborted(f"volume {volume_id} was attached to node {self.spelling(volume, vm)} again meanwhile")
            if entry is not None and not self.entries.is_free(volume_id, entry):
                raise Aborted(
                    f"volume {volume_id}: an attach to node {entry.node_id} that was begun by another process, or got "
                    "no answer, may still be carried out; ask again in a minute"
                )
            try:
                await self.entries.remove(volume, vm, was_held=was_held)
            except (Stale, NotFound):
                continue
            return
        raise Unavailable(f"volume {volume_id}: its claim kept changing while the entry of VM {vm} was to be removed")


def held_as(machine: Machine, volume_id: str) -> list[str]:
    """The names under which the machine has the volume's claim, other than the one that this driver gives."""
    return sorted(machine.names_of(volume_id) - {volume_id})
