"""Tells a person, by an event on the object, that a fault annotation is malformed and so has no effect.

Each text is told once for an object: what it is told about does not change by itself.
"""

from __future__ import annotations

import structlog

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.faults import complaints
from e2e.lab.kubevirt.reconciling import Reconciler
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import CLAIM, DATA_VOLUME, KUBEVIRT, VM, VMI, Key, Resource, key_of, uid_of

ORDERABLE = (KUBEVIRT, VM, VMI, DATA_VOLUME, CLAIM)
REASON = "MalformedFault"

log = structlog.get_logger()


class FaultEvents:
    """Looks at the fault annotations of the objects of one resource."""

    def __init__(self, cluster: Cluster, resource: Resource) -> None:
        self._cluster = cluster
        self._resource = resource
        self._recorder = Recorder(cluster, "lab-faults")
        self._told: set[tuple[str, str]] = set()

    async def reconcile(self, key: Key) -> None:
        """Tells what has not been told about the object."""
        obj = self._cluster.get(self._resource, key)
        if obj is None:
            return
        for text in complaints(obj, self._resource.kind):
            if (uid_of(obj), text) not in self._told:
                self._told.add((uid_of(obj), text))
                log.warning("malformed fault", resource=self._resource.plural, key="/".join(key), text=text)
                await self._recorder.record(self._resource, obj, reason=REASON, message=text, kind="Warning")


def controllers(cluster: Cluster) -> list[Reconciler]:
    """One for each resource whose objects can have faults."""
    return [_controller(cluster, resource) for resource in ORDERABLE]


def _controller(cluster: Cluster, resource: Resource) -> Reconciler:
    controller = Reconciler(f"faults of {resource.plural}", FaultEvents(cluster, resource).reconcile)
    cluster.caches[resource].listen(lambda obj: controller.add(key_of(obj)))
    return controller
