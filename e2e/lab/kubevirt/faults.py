"""Faults that a person or a test orders by annotations, as one value: what there is, and how it is written.

The annotations are those of a VM, VMI, DataVolume or claim, and cluster-wide those of the KubeVirt object; where two
objects order differently, the more special one decides. Reading never fails: what is malformed is not in force, and is
told apart (`complaints`). What a fault does is the business of the module that reads its field, not of this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from e2e.lab.kubevirt.resources import CLAIM, DATA_VOLUME, VM, VMI, Object, annotations_of

PREFIX = "lab.csi.kubevirt.io/"
DROP = "drop"
KUBEVIRT_KIND = "KubeVirt"
FIRST_ERROR = 400
LONGEST_SECONDS = 24 * 3600.0
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
# What Kubernetes calls these codes (apimachinery, metav1.StatusReason).
REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is answered instead of the truth.

    Attributes:
        code: HTTP code; 0 means that the connection is dropped without an answer.
        reason: of the Status.
        text: its message.
        times: for how many requests; None means until the annotation is taken away.
    """

    code: int
    reason: str = ""
    text: str = ""
    times: int | None = None

    def status(self) -> Object:
        """The Kubernetes Status that says so."""
        return {
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "message": self.text,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults in force for one object; each field is the annotation of its name, with dashes for underscores.

    Attributes:
        refuse_addvolume: the request is not carried out and is answered so; ``refuse_removevolume`` likewise.
        lose_addvolume: the request is carried out and then answered so; ``lose_removevolume`` likewise.
        refuse_datavolume: the creation of a DataVolume is refused so.
        virt_api_down: nothing listens at virt-api's port; CDI's webhooks go on.
        virt_api_slow: seconds before addvolume and removevolume are looked at.
        slow_sync: seconds until virt-controller gets to a VM's changed hot-plugs.
        slow_attach: seconds that a volume stays MountedToPod in addition.
        slow_detach: seconds that a volume that has left the spec stays Ready in addition.
        stuck_attach: the phase (one of `ATTACH_PHASES`) that an attaching volume does not leave.
        stuck_detach: the phase (one of `DETACH_PHASES`) that a detaching volume does not leave.
        lost_status: of a volume that is Ready: ``target`` becomes empty, or the whole ``entry`` goes.
        importing: the import of a DataVolume is ``stuck`` (for ever in progress) or has ``failed``.
        slow_import: seconds that an import takes in addition.
        migration: the VMI is being migrated.
        restart: the VM is restarted once: a new VMI, a new UID.
        paused: the VMI is paused.
        guest_shutdown: the guest powers itself off once: the VMI has Succeeded.
        virt_handler_down: nobody mounts, plugs or unplugs on the VMI's node.
    """

    refuse_addvolume: Answer | None = None
    refuse_removevolume: Answer | None = None
    lose_addvolume: Answer | None = None
    lose_removevolume: Answer | None = None
    refuse_datavolume: Answer | None = None
    virt_api_down: bool = False
    virt_api_slow: float = 0.0
    slow_sync: float = 0.0
    slow_attach: float = 0.0
    slow_detach: float = 0.0
    stuck_attach: str = ""
    stuck_detach: str = ""
    lost_status: str = ""
    importing: str = ""
    slow_import: float = 0.0
    migration: bool = False
    restart: bool = False
    paused: bool = False
    guest_shutdown: bool = False
    virt_handler_down: bool = False


def faults_of(*objects: Object | None) -> Faults:
    """The faults that the annotations of these objects order, the most special object first; None has none."""
    merged: dict[str, Any] = {}
    for obj in reversed(objects):
        if obj is not None:
            merged |= dict(_in_force(obj))
    return Faults(**merged)


def complaints(obj: Object, kind: str) -> Iterator[str]:
    """One text for each fault annotation of an object of this kind that is malformed, unknown or misplaced."""
    for name, text in ordered(obj).items():
        try:
            check(name, text, kind)
        except ValueError as error:
            yield f"{PREFIX}{name}={text!r}: {error}"


def ordered(obj: Object) -> dict[str, str]:
    """The object's fault annotations as they are written, by the fault's name."""
    annotations = annotations_of(obj).items()
    return {key.removeprefix(PREFIX): text for key, text in annotations if key.startswith(PREFIX)}


def used_once(text: str) -> str | None:
    """What an annotation of an `Answer` with ``times`` becomes when it has answered once; None when that was the last.

    Raises:
        ValueError: it is no such annotation.
    """
    times = _answer(text).times
    if times is None:
        raise ValueError("has no times")
    return yaml.safe_dump(yaml.safe_load(text) | {"times": times - 1}, default_flow_style=True) if times > 1 else None


def check(name: str, text: str, kind: str) -> None:
    """Accepts an annotation that would be in force on an object of this kind.

    Raises:
        ValueError: it would not, and why.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise ValueError(f"no such fault; there are: {', '.join(FAULTS)}")
    if kind not in fault.kinds:
        raise ValueError(f"has no effect on a {kind}; it belongs on: {', '.join(fault.kinds)}")
    fault.parse(text)


def _in_force(obj: Object) -> Iterator[tuple[str, Any]]:
    """Field and value of each annotation that can be read."""
    for name, text in ordered(obj).items():
        if name in FAULTS:
            with suppress(ValueError):
                yield name.replace("-", "_"), FAULTS[name].parse(text)


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def duration(text: str) -> float:
    """The seconds that are meant by ``1.5``, ``500ms``, ``5s``, ``2m`` or ``1h``.

    Raises:
        ValueError: it is none of these, or more than a day.
    """
    found = DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else math.nan
    if not seconds <= LONGEST_SECONDS:
        raise ValueError("must be a duration of at most 24h, such as 1.5, 500ms, 5s or 2m")
    return seconds


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"must be one of: {', '.join(values)}")
        return text

    return parse


def _answer(text: str) -> Answer:
    """``409``, ``drop``, or a mapping in YAML or JSON: ``{code: 409, reason: Conflict, text: not now, times: 1}``."""
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {error}") from error
    if not isinstance(document, dict):
        document = {"code": document}
    if unknown := sorted(str(key) for key in document.keys() - {"code", "reason", "text", "times"}):
        raise ValueError(f"unknown key {', '.join(unknown)}; known are code, reason, text and times")
    times = document.get("times")
    if times is not None and not (_is_integer(times) and times > 0):
        raise ValueError(f"times is {times!r}, but must be a number of requests of 1 or more")
    code = document.get("code")
    if code == DROP:
        return Answer(code=0, times=times)
    if not _is_integer(code) or not FIRST_ERROR <= code < FIRST_ERROR + 200:
        raise ValueError(f"code is {code!r}, but must be an HTTP code from 400 to 599, or {DROP}")
    reason = str(document.get("reason", REASONS.get(code, "Unknown")))
    return Answer(code=code, reason=reason, text=str(document.get("text", "ordered by the lab")), times=times)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault as it is ordered: where, how it is written, and what it does, for the help."""

    kinds: Sequence[str]
    parse: Callable[[str], Any]
    value: str
    effect: str


ATTACH_PHASES = ("Bound", "AttachedToNode", "MountedToPod")
DETACH_PHASES = ("Ready", "UnMountedFromPod", "Detaching")
_REQUEST = (VM.kind, VMI.kind, KUBEVIRT_KIND)
_VOLUME = (CLAIM.kind, DATA_VOLUME.kind, VMI.kind, VM.kind, KUBEVIRT_KIND)
_IMPORT = (CLAIM.kind, DATA_VOLUME.kind, KUBEVIRT_KIND)


def _fault(kinds: Sequence[str], parse: Callable[[str], Any], value: str, effect: str) -> Fault:
    return Fault(kinds=kinds, parse=parse, value=value, effect=effect)


FAULTS = {
    "refuse-addvolume": _fault(_REQUEST, _answer, "ANSWER", "not carried out, answered so"),
    "refuse-removevolume": _fault(_REQUEST, _answer, "ANSWER", "not carried out, answered so"),
    "lose-addvolume": _fault(_REQUEST, _answer, "ANSWER", "carried out, and then answered so"),
    "lose-removevolume": _fault(_REQUEST, _answer, "ANSWER", "carried out, and then answered so"),
    "refuse-datavolume": _fault((KUBEVIRT_KIND,), _answer, "ANSWER", "CDI's webhook refuses every new DataVolume so"),
    "virt-api-down": _fault((KUBEVIRT_KIND,), _switch, "true", "nothing listens at virt-api's port"),
    "virt-api-slow": _fault(_REQUEST, duration, "DURATION", "addvolume and removevolume begin so much later"),
    "slow-sync": _fault(
        (VM.kind, KUBEVIRT_KIND), duration, "DURATION", "virt-controller gets to a VM's changed hot-plugs so much later"
    ),
    "slow-attach": _fault(_VOLUME, duration, "DURATION", "volumes stay MountedToPod so much longer"),
    "slow-detach": _fault(_VOLUME, duration, "DURATION", "volumes that have left the spec stay Ready so much longer"),
    "stuck-attach": _fault(_VOLUME, _one_of(*ATTACH_PHASES), "PHASE", "attaching ends at this phase"),
    "stuck-detach": _fault(_VOLUME, _one_of(*DETACH_PHASES), "PHASE", "detaching ends at this phase"),
    "lost-status": _fault(
        _VOLUME, _one_of("target", "entry"), "target|entry", "a Ready volume's target or whole status entry is lost"
    ),
    "importing": _fault(_IMPORT, _one_of("stuck", "failed"), "stuck|failed", "imports never end, or end as Failed"),
    "slow-import": _fault(_IMPORT, duration, "DURATION", "imports take so much longer"),
    "migration": _fault((VMI.kind, VM.kind, KUBEVIRT_KIND), _switch, "true", "the VMI is being migrated"),
    "restart": _fault((VM.kind,), _switch, "true", "the VM restarts once: a new VMI with a new UID"),
    "paused": _fault((VMI.kind, VM.kind), _switch, "true", "the guest's processors stand still"),
    "guest-shutdown": _fault((VM.kind,), _switch, "true", "the guest powers itself off once: Succeeded"),
    "virt-handler-down": _fault(
        (VMI.kind, VM.kind, KUBEVIRT_KIND), _switch, "true", "nothing is mounted, plugged or unplugged"
    ),
}
"""Every fault by its name, in the order of the help."""
