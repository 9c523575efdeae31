"""What CreateVolume keeps of a request, so that a repetition can be compared and not only found.

A short text on the infra objects, such as ``access=SINGLE_NODE_WRITERS;parameters=1f0c…;source=blank``. It is compared
part by part, so that the answer can name what differs. A part that is missing, or a text that cannot be read, belongs
to an older release or to the predecessor and says nothing: unknown is not a mismatch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from kubevirt_csi.domain.access import Capability
from kubevirt_csi.domain.classes import ClassParameters

ACCESS = "access"
PARAMETERS = "parameters"
SOURCE = "source"
BLANK = "blank"
_FAMILIES = "+"
_HASH_DIGITS = 16


def digest(parameters: ClassParameters, capabilities: Iterable[Capability]) -> str:
    """The text for a request that makes a blank volume."""
    text = json.dumps(parameters.canonical(), sort_keys=True).encode()
    parts = {
        ACCESS: _FAMILIES.join(sorted({capability.mode.family for capability in capabilities})),
        PARAMETERS: hashlib.sha256(text).hexdigest()[:_HASH_DIGITS],
        SOURCE: BLANK,
    }
    return ";".join(f"{key}={value}" for key, value in sorted(parts.items()))


def differences(stored: str | None, wanted: str) -> list[str]:
    """The names of the parts that both texts have and in which they differ, sorted."""
    old, new = _parts(stored), _parts(wanted)
    return sorted(key for key in old.keys() & new.keys() if old[key] != new[key])


def families(stored: str | None) -> frozenset[str]:
    """The families of access modes that the volume was made for; empty when unknown."""
    found = _parts(stored).get(ACCESS)
    return frozenset(found.split(_FAMILIES)) if found else frozenset()


def _parts(text: str | None) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in (text or "").split(";"))
    return {key: value for key, equals, value in pairs if equals}
