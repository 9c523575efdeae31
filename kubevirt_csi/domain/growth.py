"""What becomes of a claim that asks for more than it has, read from what Kubernetes tells on the claim itself.

No field says "done". A claim has grown when its capacity is what it asks for. Before that, ``FileSystemResizePending``
says that the storage is larger and only a node has something left to do, which needs a pod that uses the claim: so for
a volume that is attached nowhere it is the end. States and conditions outlive the request that they are about; it is
``allocatedResources`` that tells which one that was.
Source: Kubernetes pkg/apis/core/types.go (ClaimResourceStatus), kubernetes-csi/external-resizer pkg/controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kubevirt_csi.domain.infra_volumes import LOST, Claim

RESIZE_PENDING = "FileSystemResizePending"
UNUSED = "Unused"
"""Tells since when no pod uses the claim, which in the infra cluster is no news of its growth."""
INFEASIBLE = "Infeasible"
"""How ClaimResourceStatus says that the storage will not do it: ControllerResizeInfeasible, NodeResizeInfeasible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a claim is to ask for, and what the guest is promised to see then; bytes. The same for a Block claim."""

    claim_bytes: int
    size_bytes: int


class Stage(Enum):
    """How far a growth has come."""

    GROWING = "growing"
    GROWN = "grown"
    """The storage has the size; a node may still have to see it."""
    REFUSED = "refused"
    """It will not happen unless the claim asks for less, or an operator acts."""


def stage_of(claim: Claim, claim_bytes: int) -> Stage:
    """How far the claim is on its way to this capacity."""
    if claim.capacity_bytes is not None and claim.capacity_bytes >= claim_bytes:
        return Stage.GROWN
    if claim.phase == LOST or (is_refused(claim) and claim.size_bytes == claim_bytes):
        return Stage.REFUSED
    asked = claim.allocated_bytes is None or claim.allocated_bytes >= claim_bytes
    pending = any(each.type == RESIZE_PENDING and each.status == "True" for each in claim.conditions)
    return Stage.GROWN if pending and asked and claim.size_bytes >= claim_bytes else Stage.GROWING


def is_refused(claim: Claim) -> bool:
    """Whether the storage has refused what the claim asks for now, and not something that it asked for before."""
    return claim.resize_state.endswith(INFEASIBLE) and claim.allocated_bytes == claim.size_bytes


def describe(claim: Claim) -> str:
    """Sizes, state and the texts of the storage's own errors; for people."""
    words = [f"its claim asks for {claim.size_bytes} bytes and has {claim.capacity_bytes or 0}"]
    words += [claim.resize_state] if claim.resize_state else []
    told = [each for each in claim.conditions if each.status == "True" and each.message and each.type != UNUSED]
    words += [f"{each.type}: {each.message}" for each in told]
    return "; ".join(words)
