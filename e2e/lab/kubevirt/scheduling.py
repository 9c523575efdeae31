"""kube-scheduler's part: a pod is given a node when its claims are bound, or binds them by its choice.

Source: Kubernetes pkg/scheduler/framework/plugins/volumebinding. A claim that waits for its first consumer gets the
node's name; the pod then waits, still without a node, until the claim is bound. Of several nodes the first that fits
is chosen: there is always room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.offers import waits_for_consumer
from e2e.lab.kubevirt.recording import Recorder, now
from e2e.lab.kubevirt.resources import (
    CLAIM,
    NODE,
    POD,
    VOLUME,
    Key,
    Object,
    annotations_of,
    deleting,
    dig,
    key_of,
    labels_of,
)

SELECTED_NODE = "volume.kubernetes.io/selected-node"
SCHEDULED = "PodScheduled"
CORDONED = "node.kubernetes.io/unschedulable"


class Scheduler:
    """Chooses nodes for pods."""

    def __init__(self, cluster: Cluster, nodes: Sequence[str]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._recorder = Recorder(cluster, "default-scheduler")

    async def place(self, pod: Object) -> str | None:
        """The node that the pod can be bound to now; None while it must wait, or when no node will do."""
        refusals = {node: next(self._conflicts(pod, node), "") for node in self._nodes}
        node = next((node for node, refusal in refusals.items() if not refusal), None)
        counted = (f"{count} {refusal}" for refusal, count in sorted(Counter(refusals.values()).items()))
        problem = next(self._problems(pod), "" if node else ", ".join(counted))
        if problem or node is None:
            await self._report(pod, f"0/{len(self._nodes)} nodes are available: {problem}.")
            return None
        unbound = [claim for claim in self._claims(pod) if not _is_bound(claim)]
        for claim in unbound:
            if annotations_of(claim).get(SELECTED_NODE) is None:
                patch = {"metadata": {"annotations": {SELECTED_NODE: node}}}
                await self._cluster.patch(CLAIM, key_of(claim), patch)
        return None if unbound else node

    def _conflicts(self, pod: Object, name: str) -> Iterator[str]:
        """Why the pod cannot be on the node."""
        node = self._cluster.get(NODE, ("", name))
        labels = labels_of(node) if node is not None else {"kubernetes.io/hostname": name}
        if dig(node, "spec", "unschedulable") and not _tolerates(pod, CORDONED):
            yield "node(s) were unschedulable"
        required = dig(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        if not _selects(required, labels):
            yield "node(s) didn't match Pod's node affinity/selector"
        for claim in self._claims(pod):
            volume = self._cluster.get(VOLUME, ("", dig(claim, "spec", "volumeName", default="")))
            if not _selects(dig(volume, "spec", "nodeAffinity", "required"), labels):
                yield "node(s) didn't match PersistentVolume's node affinity"

    def _problems(self, pod: Object) -> Iterator[str]:
        for key in claim_keys(pod):
            claim = self._cluster.get(CLAIM, key)
            if claim is None:
                yield f'persistentvolumeclaim "{key[1]}" not found'
            elif deleting(claim):
                yield f'persistentvolumeclaim "{key[1]}" is being deleted'
            elif not _is_bound(claim) and not waits_for_consumer(self._cluster, claim["spec"].get("storageClassName")):
                yield "pod has unbound immediate PersistentVolumeClaims"

    def _claims(self, pod: Object) -> list[Object]:
        found = (self._cluster.get(CLAIM, key) for key in claim_keys(pod))
        return [claim for claim in found if claim is not None]

    async def _report(self, pod: Object, message: str) -> None:
        conditions = dig(pod, "status", "conditions", default=[])
        told = next((each.get("message") for each in conditions if each["type"] == SCHEDULED), None)
        if told == message:
            return
        condition = {"type": SCHEDULED, "status": "False", "reason": "Unschedulable", "message": message}
        others = [each for each in conditions if each["type"] != SCHEDULED]
        status = {"conditions": [*others, condition | {"lastTransitionTime": now()}]}
        await self._cluster.patch(POD, key_of(pod), {"status": status}, subresource="/status")
        await self._recorder.record(POD, pod, reason="FailedScheduling", message=message, kind="Warning")


def is_unschedulable(pod: Object) -> bool:
    """Whether the scheduler has said that it has no node for the pod."""
    conditions = dig(pod, "status", "conditions", default=[])
    return any(each["type"] == SCHEDULED and each.get("reason") == "Unschedulable" for each in conditions)


def claim_keys(pod: Object) -> list[Key]:
    """The claims that the pod uses."""
    names = (dig(volume, "persistentVolumeClaim", "claimName") for volume in pod["spec"].get("volumes", []))
    return [(key_of(pod)[0], name) for name in names if name]


def _is_bound(claim: Object) -> bool:
    return bool(dig(claim, "status", "phase") == "Bound")


def _tolerates(pod: Object, taint: str) -> bool:
    tolerations: list[Object] = pod["spec"].get("tolerations", [])
    return any(each.get("key", taint) == taint and each.get("operator") == "Exists" for each in tolerations)


def _selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether the node selector, none of which selects everything, selects a node of these labels."""
    terms = dig(selector, "nodeSelectorTerms", default=[{}])
    return any(all(_matches(each, labels) for each in term.get("matchExpressions", [])) for term in terms)


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One requirement; of the operators those that name values or ask for a key."""
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case other:
            raise ValueError(f"the operator {other} of a node selector is not modelled")
