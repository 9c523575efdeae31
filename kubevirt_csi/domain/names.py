"""From a CSI name to the one name that a volume bears everywhere in the infra cluster.

Volume id = DataVolume name = claim name = name of the volume in the VM, so it has to be a DNS label: KubeVirt refuses
others as a volume name. What the provisioner sends (``pvc-<uuid>``) is one already and stays as it is, which is also
what the predecessor did. Everything else that the CSI specification allows is hashed; the same name always gives the
same id, which is the lock between replicas.
"""

from __future__ import annotations

import hashlib
import re

from kubevirt_csi.errors import InvalidArgument

LONGEST_NAME_BYTES = 128
"""CSI spec: size limits."""
LONGEST_LABEL = 63
_HASHED_PREFIX = "csi-"
_HASHED_DIGITS = 40
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""CSI spec: CreateVolumeRequest.name."""


def volume_id(name: str) -> str:
    """The volume id for a CSI name: the name itself when it is a DNS label, else a hash of it; 63 characters at most.

    Raises:
        InvalidArgument: the name is empty, longer than 128 bytes, or has control characters.
    """
    if not name:
        raise InvalidArgument("name is empty: a volume needs a name")
    if len(name.encode()) > LONGEST_NAME_BYTES:
        raise InvalidArgument(f"name is longer than {LONGEST_NAME_BYTES} bytes")
    if _FORBIDDEN.search(name):
        raise InvalidArgument("name has control characters, which the CSI specification forbids")
    if is_volume_id(name):
        return name
    return _HASHED_PREFIX + hashlib.sha256(name.encode()).hexdigest()[:_HASHED_DIGITS]


def shown(text: str) -> str:
    """A caller's text as it may stand in an error text: cut to a readable length, quoted if it does not print."""
    cut = text if len(text) <= LONGEST_NAME_BYTES else f"{text[:LONGEST_NAME_BYTES]}…"
    return cut if cut.isprintable() else repr(cut)


def is_volume_id(text: str) -> bool:
    """Whether a volume could bear this id; others are not worth asking the infra cluster about."""
    return len(text) <= LONGEST_LABEL and _LABEL.fullmatch(text) is not None
