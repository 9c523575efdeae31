"""Events on objects, counted instead of repeated, as client-go's recorder does.

An event that cannot be written is logged and forgotten: it tells about the work and is no part of it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
from collections.abc import Iterable
from typing import Literal

import structlog

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.resources import EVENT, Object, Resource, uid_of

REMEMBERED = 4096  # as many events as client-go remembers

log = structlog.get_logger()


def now() -> str:
    """The present time as Kubernetes writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Recorder:
    """Writes the events of one component."""

    def __init__(self, cluster: Cluster, component: str) -> None:
        self._cluster = cluster
        self._component = component
        self._written: dict[tuple[str, str, str], Object] = {}

    async def record(
        self,
        resource: Resource,
        obj: Object,
        *,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Writes an event about the object, or raises the count of the same one."""
        same = (uid_of(obj), reason, message)
        if len(self._written) > REMEMBERED:
            self._written.clear()
        try:
            if same in self._written:
                event = self._written[same]
                event["count"] += 1
                event["lastTimestamp"] = now()
                await self._patch_count(event)
            else:
                self._written[same] = await self._create(resource, obj, reason=reason, message=message, kind=kind)
        except ApiError as error:
            self._written.pop(same, None)
            log.info("event not written", reason=reason, message=message, error=str(error))

    async def record_all(self, resource: Resource, obj: Object, events: Iterable[tuple[str, str]]) -> None:
        """Writes an event for each reason and message, beside each other: a busy VMI has dozens at once."""
        await asyncio.gather(
            *(self.record(resource, obj, reason=reason, message=message) for reason, message in events)
        )

    async def _create(self, resource: Resource, obj: Object, *, reason: str, message: str, kind: str) -> Object:
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "default")
        event = {
            "metadata": {"namespace": namespace, "name": f"{metadata['name']}.{secrets.token_hex(8)}"},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "namespace": metadata.get("namespace"),
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        return await self._cluster.create(EVENT, event)

    async def _patch_count(self, event: Object) -> None:
        metadata = event["metadata"]
        await self._cluster.patch(
            EVENT,
            (metadata["namespace"], metadata["name"]),
            {"count": event["count"], "lastTimestamp": event["lastTimestamp"]},
        )
