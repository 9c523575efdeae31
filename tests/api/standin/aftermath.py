"""What came of the kills: what was made and plugged, by whom at once, and what is left.

Looked at from outside: at kube-apiserver's objects and their history, and at what has passed the doorways.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Never

from e2e.lab.api import eventually
from tests.api.standin.doorway import Doorway
from tests.api.standin.schedules import Schedule, names_in
from tests.api.standin.site import Site
from tests.api.standin.talking import Object, version_of

RELEASED_SECONDS = 20.0


def volumes_of(found: Object) -> set[str]:
    """The names of a VM's or VMI's volumes, in spec and status."""
    status = {entry["name"] for entry in found.get("status", {}).get("volumeStatus", [])}
    return names_in(found["spec"].get("template", found).get("spec", {})) | status


@dataclass(slots=True, kw_only=True)
class History:
    """All states of all VMs and VMIs, in the order in which the cluster got to know them."""

    events: list[Object] = field(default_factory=list)

    async def record(self, site: Site, collection: str, since: str) -> Never:
        """Follows the collection for ever; a stream that ends is taken up again where it ended."""
        while True:
            async for event in site.client._events(collection, since=since):
                assert event["type"] != "ERROR", event
                self.events.append(event)
                since = version_of(event["object"])

    def double_hotplugs(self) -> list[str]:
        """Volumes that two VMs had at once, each with its VMs."""
        now: dict[tuple[str, str], set[str]] = {}
        found = set()
        for event in sorted(self.events, key=lambda event: int(version_of(event["object"]))):
            kind, name = event["object"]["kind"], event["object"]["metadata"]["name"]
            now[kind, name] = volumes_of(event["object"]) - {"root"}
            for volume in now[kind, name]:
                holders = {vm for (_, vm), volumes in now.items() if volume in volumes}
                found |= {f"{volume} in {', '.join(sorted(holders))}"} if len(holders) > 1 else set()
        return sorted(found)


@asynccontextmanager
async def recorded(site: Site) -> AsyncIterator[History]:
    """Records while the block runs."""
    history = History()
    since = {path: version_of(await site.client.get(path)) for path in (site.vms, site.vmis)}
    tasks = [asyncio.create_task(history.record(site, path, version)) for path, version in since.items()]
    try:
        yield history
        assert not any(task.done() for task in tasks), "a recording has a gap"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def leftovers(site: Site) -> list[str]:
    """What is left of any volume: DataVolumes, claims, PersistentVolumes, and volumes in VMs."""

    async def released() -> bool:
        found = (await site.client.get("/api/v1/persistentvolumes"))["items"]
        claims = [item["spec"].get("claimRef") or {} for item in found]
        return all(claim.get("namespace") != site.namespace for claim in claims)

    left = []
    try:
        await eventually(released, what="every PersistentVolume is gone", deadline_seconds=RELEASED_SECONDS)
    except TimeoutError as error:
        left.append(str(error))
    left += [
        item["metadata"]["name"]
        for path in (site.datavolumes, site.claims)
        for item in (await site.client.get(path))["items"]
    ]
    for path in (site.vms, site.vmis):
        for found in (await site.client.get(path))["items"]:
            left += [f"{name} in {found['kind']} {found['metadata']['name']}" for name in volumes_of(found) - {"root"}]
    return left


def accepted(doors: Iterable[Doorway], schedule: Schedule) -> tuple[int, Counter[str]]:
    """How many DataVolumes were made for it, and how often ``addvolume`` was accepted, by VM."""
    made, plugged = 0, Counter[str]()
    for exchange in (exchange for door in doors for exchange in door.exchanges):
        request, body = exchange.request, exchange.request.body
        if request.path.endswith("/datavolumes") and body.get("metadata", {}).get("name") == schedule.volume:
            made += exchange.code == 201
        if request.path.endswith("/addvolume") and body["name"] == schedule.volume:
            plugged[request.path.split("/")[-2]] += exchange.code == 202
    return made, +plugged
