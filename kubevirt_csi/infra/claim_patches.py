"""The JSON patches of claims: each tests first that what the driver decided upon is still so, then changes it.

The whole object's resourceVersion would be too much to ask: Kubernetes writes a claim's status whenever a pod begins or
ceases to use it (1.37: condition Unused), thus within every hot-plug, and that changes no decision of ours. Source: RFC
6902; that a missing member equals null is evanphx/json-patch, which the API server applies patches with.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubevirt_csi.domain.infra_volumes import KEPT_ON_CLAIM, Claim
from kubevirt_csi.infra.resources import Object

Patch = list[Object]


def annotating(claim: Claim, changes: Mapping[str, str | None]) -> Patch:
    """Writes annotations (None removes one), if the claim lives and this driver's are as they were read."""
    living = [] if claim.deleting else [_test("/metadata/deletionTimestamp", None)]
    guard = [_test("/metadata/uid", claim.uid), *living]
    if claim.annotations is None:
        first = {"op": "add", "path": _ANNOTATIONS, "value": {}}
        return [*guard, _test(_ANNOTATIONS, None), first, *_changes({}, changes)]
    known = claim.annotations
    unchanged = [_test(_annotation(key), known.get(key)) for key in sorted({*KEPT_ON_CLAIM, *changes})]
    return [*guard, *unchanged, *_changes(known, changes)]


def resizing(claim: Claim, quantity: str, annotations: Mapping[str, str | None]) -> Patch:
    """Asks for another size, as a Kubernetes quantity, of this very version of the claim."""
    return [
        _test("/metadata/resourceVersion", claim.resource_version),
        *annotating(claim, annotations),
        {"op": "replace", "path": "/spec/resources/requests/storage", "value": quantity},
    ]


_ANNOTATIONS = "/metadata/annotations"


def _annotation(key: str) -> str:
    return f"{_ANNOTATIONS}/{key.replace('~', '~0').replace('/', '~1')}"


def _test(path: str, value: str | None) -> Object:
    return {"op": "test", "path": path, "value": value}


def _changes(known: Mapping[str, str], changes: Mapping[str, str | None]) -> Patch:
    return [
        {"op": "remove", "path": _annotation(key)}
        if value is None
        else {"op": "add", "path": _annotation(key), "value": value}
        for key, value in changes.items()
        if value is not None or key in known
    ]
