"""When the controller is killed, how its caller goes on, and what has to come of it: the table, and how to read it.

A *point* is a request of one call, or a state that it waits for. A *moment* says how far the point had come when the
process died. A *recovery* says whom the caller turns to then. Every point is combined with every recovery.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum

from tests.api.standin.doorway import Hold, Object, Request, Veil
from tests.api.standin.site import entry_of


class Call(StrEnum):
    """The call during which the process is killed."""

    CREATE = "CreateVolume"
    PUBLISH = "ControllerPublishVolume"
    UNPUBLISH = "ControllerUnpublishVolume"
    EXPAND = "ControllerExpandVolume"
    DELETE = "DeleteVolume"


class Moment(Enum):
    """How far it had come."""

    SENT = "sent and lost"
    """kube-apiserver never gets the request."""
    LATE = "sent and late"
    """kube-apiserver gets it after whoever took over has answered for the first time."""
    DONE = "carried out"
    """kube-apiserver has done it, and the process never hears of it."""
    SO = "so"
    """The cluster has come to that state, and the process has not seen it."""
    ANSWERED = "answered"
    """The caller has its answer, and forgets it."""


class Recovery(Enum):
    """What the caller does."""

    RESTARTED = "again, to the restarted process"
    REPLICA = "again, to a second replica"
    MOVED = "the pod goes elsewhere, by a second replica"
    """Publish to another node at once, as by a caller that forgot the first; then in the right order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row of the table."""

    call: Call
    at: str
    moment: Moment
    fenced: bool = False
    """An attach may still come of it, so whoever takes over has to wait until that is out of the question."""
    plugs: bool = False
    """The killed process's ``addvolume`` is carried out, in the end."""


ENTRY, ADD, REMOVE, VOLUME = "entry", "addvolume", "removevolume", "DataVolume"
ATTACHED, DETACHED, GROWN, ANSWER = "attached", "detached", "grown", "answer"

GROWN_SIZE = "128Mi"
"""What a volume is to grow to, as a claim asks for it."""

POINTS = (
    Point(call=Call.CREATE, at=VOLUME, moment=Moment.SENT),
    Point(call=Call.CREATE, at=VOLUME, moment=Moment.LATE),
    Point(call=Call.CREATE, at=VOLUME, moment=Moment.DONE),
    Point(call=Call.CREATE, at=ANSWER, moment=Moment.ANSWERED),
    Point(call=Call.PUBLISH, at=ENTRY, moment=Moment.SENT),
    Point(call=Call.PUBLISH, at=ENTRY, moment=Moment.LATE),
    Point(call=Call.PUBLISH, at=ENTRY, moment=Moment.DONE, fenced=True),
    Point(call=Call.PUBLISH, at=ADD, moment=Moment.SENT, fenced=True),
    Point(call=Call.PUBLISH, at=ADD, moment=Moment.LATE, fenced=True, plugs=True),
    Point(call=Call.PUBLISH, at=ADD, moment=Moment.DONE, plugs=True),
    Point(call=Call.PUBLISH, at=ATTACHED, moment=Moment.SO, plugs=True),
    Point(call=Call.PUBLISH, at=ANSWER, moment=Moment.ANSWERED, plugs=True),
    Point(call=Call.UNPUBLISH, at=REMOVE, moment=Moment.SENT, fenced=True, plugs=True),
    Point(call=Call.UNPUBLISH, at=REMOVE, moment=Moment.LATE, fenced=True, plugs=True),
    Point(call=Call.UNPUBLISH, at=REMOVE, moment=Moment.DONE, fenced=True, plugs=True),
    Point(call=Call.UNPUBLISH, at=DETACHED, moment=Moment.SO, fenced=True, plugs=True),
    Point(call=Call.UNPUBLISH, at=ENTRY, moment=Moment.SENT, fenced=True, plugs=True),
    Point(call=Call.UNPUBLISH, at=ENTRY, moment=Moment.LATE, fenced=True, plugs=True),
    Point(call=Call.UNPUBLISH, at=ENTRY, moment=Moment.DONE, plugs=True),
    Point(call=Call.UNPUBLISH, at=ANSWER, moment=Moment.ANSWERED, plugs=True),
    Point(call=Call.EXPAND, at=ENTRY, moment=Moment.SENT),
    Point(call=Call.EXPAND, at=ENTRY, moment=Moment.LATE),
    Point(call=Call.EXPAND, at=ENTRY, moment=Moment.DONE),
    Point(call=Call.EXPAND, at=GROWN, moment=Moment.SO),
    Point(call=Call.EXPAND, at=ANSWER, moment=Moment.ANSWERED),
    Point(call=Call.DELETE, at=VOLUME, moment=Moment.SENT),
    Point(call=Call.DELETE, at=VOLUME, moment=Moment.LATE),
    Point(call=Call.DELETE, at=VOLUME, moment=Moment.DONE),
    Point(call=Call.DELETE, at=ANSWER, moment=Moment.ANSWERED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A point, a recovery, and the volume and the VM (if it takes one) that nobody else uses."""

    number: int
    point: Point
    recovery: Recovery
    elsewhere: str
    """The VM that a moved pod goes to."""

    def __str__(self) -> str:
        point = self.point
        return f"{self.volume}: {point.call} killed at {point.at} {point.moment.value}, {self.recovery.value}"

    @property
    def volume(self) -> str:
        return f"pvc-kill-{self.number}"

    @property
    def vm(self) -> str:
        return f"kill-{self.number}"

    @property
    def needs_vm(self) -> bool:
        return self.point.call in (Call.PUBLISH, Call.UNPUBLISH)

    @property
    def hotplugs(self) -> dict[str, int]:
        """How often ``addvolume`` may have been accepted when all is over, by VM."""
        if not self.needs_vm:
            return {}
        if self.recovery is Recovery.MOVED:
            return {self.elsewhere: 1} | ({self.vm: 1} if self.point.plugs else {})
        return {self.vm: 1}

    @property
    def is_reached_late(self) -> bool:
        """Whether much has to happen before its point is reached."""
        return self.point.at in (ATTACHED, DETACHED, GROWN, ANSWER) or (self.point.call, self.point.at) == (
            Call.UNPUBLISH,
            ENTRY,
        )

    def hold(self) -> Hold | None:
        """What stops its request; None when its point is no request."""
        if self.point.moment in (Moment.SO, Moment.ANSWERED):
            return None
        return Hold(matches=self._is_its, answered=self.point.moment is Moment.DONE)

    def veil(self) -> Veil | None:
        """What hides its state from the process; None when its point is no state."""
        if self.point.moment is not Moment.SO:
            return None
        if self.point.at == GROWN:
            return Veil(plural="persistentvolumeclaims", name=self.volume, shows=_is_grown)
        shows = self._is_ready if self.point.at == ATTACHED else self._is_free
        return Veil(plural="virtualmachineinstances", name=self.vm, shows=shows)

    def _is_its(self, request: Request) -> bool:
        path = request.path
        match self.point.at, self.point.call:
            case "DataVolume", Call.CREATE:
                creates = request.method == "POST" and path.endswith("/datavolumes")
                return creates and request.body.get("metadata", {}).get("name") == self.volume
            case "DataVolume", _:
                return request.method == "DELETE" and path.endswith(f"/datavolumes/{self.volume}")
            case "entry", _:
                return request.method == "PATCH" and path.endswith(f"/persistentvolumeclaims/{self.volume}")
            case _:
                return path.endswith(f"/virtualmachines/{self.vm}/{self.point.at}")

    def _is_ready(self, vmi: Object) -> bool:
        entry = entry_of(vmi, self.volume)
        return entry.get("phase") == "Ready" and bool(entry.get("target"))

    def _is_free(self, vmi: Object) -> bool:
        return not entry_of(vmi, self.volume) and self.volume not in names_in(vmi["spec"])


def _is_grown(claim: Object) -> bool:
    storage = claim.get("status", {}).get("capacity", {}).get("storage")
    return bool(storage == claim["spec"]["resources"]["requests"]["storage"] == GROWN_SIZE)


def names_in(spec: Object) -> set[str]:
    """The volumes of a VMI's spec, or of a VM's template's."""
    return {volume["name"] for volume in spec.get("volumes", [])}


def schedules(*, elsewhere: str) -> Iterator[Schedule]:
    """Every point with every recovery that makes sense for it."""
    numbers = itertools.count(1)
    for recovery, point in itertools.product(Recovery, POINTS):
        if recovery is not Recovery.MOVED or point.call is Call.PUBLISH:
            yield Schedule(number=next(numbers), point=point, recovery=recovery, elsewhere=elsewhere)
