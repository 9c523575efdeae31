"""When a volume was seen where in the management cluster: own watches beside the driver's.

Four moments count: the volume is filled (its DataVolume has Succeeded); it is in VM spec or queue (``addvolume`` was
accepted); the instance's status says Ready with a target; and it is in none of VM spec, VMI spec and VMI status any
more. A volume name is used once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.moments import Moments, states
from e2e.lab.kubevirt.connection import Connection
from e2e.lab.kubevirt.disks import volumes_of
from e2e.lab.kubevirt.resources import DATA_VOLUME, VM, VMI, Object, Resource, dig
from e2e.lab.management import NAMESPACE

FILLED, ACCEPTED, READY, GONE = "filled", "accepted", "ready", "gone"


class Sightings(Moments):
    """The moments of all volumes of the namespace, from ``run`` on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._places: dict[tuple[str, str], frozenset[str]] = {}

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_volumes())
            for resource in (VM, VMI):
                tasks.create_task(self._follow(resource))

    async def _follow_volumes(self) -> None:
        async for _, volume in states(self._connection, DATA_VOLUME.collection(NAMESPACE)):
            if dig(volume, "status", "phase") == "Succeeded":
                self.note(volume["metadata"]["name"], FILLED)

    async def _follow(self, resource: Resource) -> None:
        async for _, item in states(self._connection, resource.collection(NAMESPACE)):
            before = self._everywhere()
            held = frozenset(_held(resource, item))
            self._places[resource.kind, item["metadata"]["name"]] = held
            for name in before - self._everywhere():
                self.note(name, GONE)
            for name in held if resource is VM else ():
                self.note(name, ACCEPTED)
            for name in _ready(item) if resource is VMI else ():
                self.note(name, READY)

    def _everywhere(self) -> frozenset[str]:
        return frozenset().union(*self._places.values())


def _held(resource: Resource, item: Object) -> Iterator[str]:
    """The names of the volumes in VM spec and queue, or in VMI spec and status."""
    spec = dig(item, "spec", "template", "spec") if resource is VM else item["spec"]
    yield from (volume["name"] for volume in volumes_of(spec))
    yield from (entry["name"] for entry in dig(item, "status", "volumeStatus", default=()))
    for request in dig(item, "status", "volumeRequests", default=()):
        if "addVolumeOptions" in request:
            yield request["addVolumeOptions"]["name"]


def _ready(item: Object) -> Iterator[str]:
    for entry in dig(item, "status", "volumeStatus", default=()):
        if entry.get("phase") == "Ready" and entry.get("target"):
            yield entry["name"]
