"""The attachment entries of a volume: who may have it, recorded on its claim before anything is plugged.

Every write is guarded by the resourceVersion of the volume that was read for the decision, so a decision that another
replica overtook fails as Stale and is made again. What is written is in ``domain.attachments``; whether a volume is
anywhere is for the callers to find out.

The surprising fact: a process may not trust its own entries either when a request of its own got no answer. Such an
``addvolume`` may still be carried out, so the entry counts as somebody else's until it has aged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from kubevirt_csi.domain import attachments
from kubevirt_csi.domain.attachments import Attachment
from kubevirt_csi.domain.infra_volumes import ATTACHMENTS, CONTENT, FORMAT_OVERRIDE, OVERRIDE_IN_FORCE, InfraVolume
from kubevirt_csi.domain.machines import Machine
from kubevirt_csi.domain.nodeids import NodeId
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.observe import context
from kubevirt_csi.ports.infra import Volumes

log = structlog.get_logger(__name__)


class Entries:
    """Writes, renews and removes entries in the name of one process.

    Args:
        volumes: where the claims are.
        process: an id that no other process, and no earlier one, has.
        now: wall-clock time in seconds since the epoch.
    """

    def __init__(self, *, volumes: Volumes, process: str, now: Callable[[], float]) -> None:
        self._volumes = volumes
        self._process = process
        self._now = now
        self._unanswered: dict[tuple[str, str], Attachment] = {}

    def may_send(self, entry: Attachment) -> bool:
        """Whether ``addvolume`` may still be sent on the strength of the entry."""
        return entry.may_send(process=self._process, now=self._now())

    def may_renew(self, entry: Attachment) -> bool:
        """Whether another attempt on the entry's own VM may begin: it is ours, or has aged."""
        return entry.is_free(process=self._process, now=self._now())

    def unanswered(self, volume_id: str, entry: Attachment) -> None:
        """An ``addvolume`` on the strength of the entry got no answer and may still be carried out."""
        self._unanswered[volume_id, entry.vm] = entry

    def is_free(self, volume_id: str, entry: Attachment) -> bool:
        """Whether the entry of a volume that is nowhere may be replaced or removed."""
        doubted = self._unanswered.get((volume_id, entry.vm))
        process = "" if doubted is not None and self._in_doubt(doubted) else self._process
        return entry.is_free(process=process, now=self._now())

    def _in_doubt(self, entry: Attachment) -> bool:
        return not entry.is_free(process="", now=self._now())

    async def put(
        self, volume: InfraVolume, *, node: NodeId, machine: Machine, exclusive: bool
    ) -> tuple[InfraVolume, Attachment]:
        """Writes an entry for the machine with the time of now; an older one's content counts as used.

        Args:
            volume: as read for the decision.
            node: the caller's spelling of the node id.
            machine: the VM; it must exist.
            exclusive: the entry becomes the only one.

        Raises:
            Stale: the claim has changed since.
            NotFound: there is no claim.
        """
        entry = Attachment(
            node_id=node.text,
            vm=machine.name,
            vm_uid=machine.uid or "",
            process=self._process,
            attempted_at=self._now(),
        )
        others = {} if exclusive else {vm: e for vm, e in volume.attachments.items() if vm != machine.name}
        permission: dict[str, str | None] = {}
        if volume.override:
            permission = {FORMAT_OVERRIDE: None, OVERRIDE_IN_FORCE: volume.override}
            log.warning("format override handed over", volume_id=volume.id, node=node.text, serial=volume.override)
        entries = others | {machine.name: entry}
        volume = await self._write(volume, entries, used=bool(volume.attachments), permission=permission)
        return volume, entry

    async def remove(self, volume: InfraVolume, vm: str, *, was_held: bool = True) -> None:
        """Removes the VM's entry, if there is one; the content counts as used from here on.

        An override that was in force ends with it: one that was forgotten must not cost the data of a year later. What
        the VM never held leaves the override for the next attachment.

        Raises:
            Stale: the claim has changed since.
            NotFound: there is no claim.
        """
        permission: dict[str, str | None] = {}
        if volume.override_in_force:
            permission = {OVERRIDE_IN_FORCE: None} | ({} if was_held else {FORMAT_OVERRIDE: volume.override_in_force})
        entries = {name: e for name, e in volume.attachments.items() if name != vm}
        await self._write(volume, entries, used=True, permission=permission)
        self._unanswered.pop((volume.id, vm), None)

    async def _write(
        self,
        volume: InfraVolume,
        entries: Mapping[str, Attachment],
        *,
        used: bool,
        permission: Mapping[str, str | None],
    ) -> InfraVolume:
        changes: dict[str, str | None] = {ATTACHMENTS: attachments.encode(entries), **permission}
        if used and volume.content is Content.NONE:
            changes[CONTENT] = Content.USED.value
        context.mark_written()
        return await self._volumes.annotate(volume, changes)
