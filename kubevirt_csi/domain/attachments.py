"""The attachments annotation on the claim: which VMs may have the volume, written before anything is plugged.

It is the fence between replicas and over crashes. An entry is written with a resourceVersion precondition before
``addvolume`` is sent; whoever wrote it sends ``addvolume`` only within SEND_SECONDS of the attempt's time, and another
process takes an entry whose volume is nowhere for free only FREE_SECONDS after it. An attempt is never "confirmed" by a
second write: it ages out by itself, and the process that made it knows without reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

SEND_SECONDS = 30.0
FREE_SECONDS = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One entry: node id as the caller spelt it, VM name and UID, and who attempted it when (seconds since epoch)."""

    node_id: str
    vm: str
    vm_uid: str
    process: str
    attempted_at: float

    def may_send(self, *, process: str, now: float) -> bool:
        """Whether this process may still send ``addvolume`` on the strength of the entry."""
        return self.process == process and now - self.attempted_at < SEND_SECONDS

    def is_free(self, *, process: str, now: float) -> bool:
        """Whether an entry whose volume is nowhere may be taken over or removed by this process."""
        return self.process == process or now - self.attempted_at >= FREE_SECONDS


Attachments = Mapping[str, Attachment]
"""By VM name."""


def decode(text: str | None) -> dict[str, Attachment]:
    """Reads the annotation; an absent one is no attachment.

    Raises:
        ValueError: it is not what ``encode`` writes. Never guess here: an unreadable entry may be a held disk.
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
        return {
            vm: Attachment(
                node_id=str(entry["node"]),
                vm=str(vm),
                vm_uid=str(entry["uid"]),
                process=str(entry["process"]),
                attempted_at=float(entry["time"]),
            )
            for vm, entry in found.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"attachments annotation is not readable: {error!r}") from error


def encode(attachments: Attachments) -> str | None:
    """The annotation's text, keys sorted; None (= remove the annotation) when there is no entry."""
    if not attachments:
        return None
    entries = {
        vm: {"node": a.node_id, "uid": a.vm_uid, "process": a.process, "time": a.attempted_at}
        for vm, a in attachments.items()
    }
    return json.dumps(entries, sort_keys=True, separators=(",", ":"))
