"""Conditions in the status of an object."""

from __future__ import annotations

from e2e.lab.kubevirt.recording import now
from e2e.lab.kubevirt.resources import Object


def set_condition(status: Object, kind: str, *, value: bool, reason: str = "", message: str = "") -> None:
    """Sets the condition; its transition time moves only when its value does."""
    conditions = status.setdefault("conditions", [])
    old = next((each for each in conditions if each["type"] == kind), None)
    new = {"type": kind, "status": str(value), "reason": reason, "message": message, "lastTransitionTime": now()}
    if old is None:
        conditions.append(new)
        return
    if old["status"] == new["status"]:
        new["lastTransitionTime"] = old["lastTransitionTime"]
    conditions[conditions.index(old)] = new


def drop_condition(status: Object, kind: str) -> None:
    """Removes the condition; that there is none is not an error."""
    status["conditions"] = [each for each in status.get("conditions", []) if each["type"] != kind]


def has_condition(status: Object, kind: str) -> bool:
    """Whether the condition is there and true."""
    return any((each["type"], each["status"]) == (kind, "True") for each in status.get("conditions", []))
