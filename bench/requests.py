"""What the driver asked the management cluster for in each phase of a volume's life, and why it has to.

Counted from kube-apiserver's own audit log, so nothing that the driver believes about itself is believed here. Watches
are not counted: they are there whether a volume lives or not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

READS = ("get", "list")
VMS, INSTANCES = "virtualmachines", "virtualmachineinstances"
CLAIMS, DATA_VOLUMES = "persistentvolumeclaims", "datavolumes"
UNEXPLAINED = "NOT EXPLAINED"


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """A kind of request in a phase of the volume's life."""

    phase: str
    verb: str
    resource: str

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.verb in READS

    @property
    def reason(self) -> str:
        """Why the driver cannot do without it."""
        return REASONS.get((self.phase, self.verb, self.resource), UNEXPLAINED)

    def __str__(self) -> str:
        return f"{self.phase}: {self.verb} {self.resource}"


REASONS = {
    ("create", "create", DATA_VOLUMES): "the volume; what CDI makes of it is told by the watch",
    ("publish", "list", VMS): "no other VM has it or is getting it: the first half of exclusiveness",
    ("publish", "list", INSTANCES): "no guest has it, and this VM runs and takes changes: the other half",
    ("publish", "patch", CLAIMS): "the entry: the fence between replicas, guarded by what was read",
    ("publish", "update", f"{VMS}/addvolume"): "the hot-plug itself",
    ("publish", "get", INSTANCES): "the guest that runs now has the disk: nothing else may be answered with OK",
    ("unpublish", "update", f"{VMS}/removevolume"): "the removal itself",
    ("unpublish", "patch", CLAIMS): "the entry is given up, and the content counts as used, in one write",
    ("delete", "get", CLAIMS): "the entries: an attach that another replica has begun shows nowhere else",
    ("delete", "list", VMS): "no VM would boot with it: what is deleted does not come back",
    ("delete", "list", INSTANCES): "no guest has it, whoever plugged it",
    ("delete", "delete", DATA_VOLUMES): "the deletion itself; that it is gone is told by the watch",
}


def counted(log: Path, phases: Iterable[tuple[str, str, float, float]]) -> Counter[Request]:
    """The requests of the audit log that fall into the phases, by kind; the phases must not overlap."""
    windows = sorted((begin, end, name) for name, _, begin, end in phases)
    found: Counter[Request] = Counter()
    for at, verb, resource in _events(log):
        for begin, end, name in windows:
            if begin <= at <= end:
                found[Request(name, verb, resource)] += 1
    return found


def _events(log: Path) -> Iterator[tuple[float, str, str]]:
    for line in log.read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef")
        if event["verb"] == "watch" or not target or event["stage"] != "ResponseComplete":
            continue
        at = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        yield at, event["verb"], resource
