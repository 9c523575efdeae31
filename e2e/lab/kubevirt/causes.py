"""Why an object is refused: one cause a mistake, as in a Status's ``details.causes``."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.lab.kubevirt.resources import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A mistake in the named field."""

    message: str
    field: str
    reason: str = "FieldValueInvalid"

    def to_json(self) -> Object:
        return {"reason": self.reason, "message": self.message, "field": self.field}
