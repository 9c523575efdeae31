"""Watched copies of the objects of one resource, and the writes that keep them fresh.

A write's answer is taken into the cache at once, so that a reconciliation that follows never sees the world from before
its own writes (and creates the same pod twice). Answers and watch events are put in order by resourceVersion, which
Kubernetes defines as comparable numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import structlog

from e2e.lab.kubevirt.connection import JSON_PATCH, MERGE_PATCH, ApiError, Connection
from e2e.lab.kubevirt.resources import Key, Object, Resource, key_of

RELIST_SECONDS = 0.5
NOT_FOUND = 404
GONE = 410

Listener = Callable[[Object], None]

log = structlog.get_logger()


class Cache:
    """The objects of one resource in all namespaces, as last seen."""

    def __init__(self, connection: Connection, resource: Resource) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._connection = connection
        self._objects: dict[Key, Object] = {}
        self._listeners: list[Listener] = []
        self._seen = 0  # the newest resourceVersion that the watch has delivered

    def listen(self, listener: Listener) -> None:
        """Calls the listener with every object that is there, changes or goes."""
        self._listeners.append(listener)

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def in_namespace(self, namespace: str) -> Iterator[Object]:
        return (obj for (ns, _), obj in list(self._objects.items()) if ns == namespace)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    async def run(self) -> NoReturn:
        """Lists and watches for ever; an expired or broken watch begins again with a list."""
        while True:
            try:
                await self._list()
                while True:
                    await self._watch()
            except ApiError as error:
                log.info("relist", resource=self.resource.plural, error=str(error))
                await asyncio.sleep(RELIST_SECONDS)

    async def _list(self) -> None:
        answer = await self._connection.request("GET", self.resource.collection())
        self._seen = int(answer["metadata"]["resourceVersion"])
        fresh = {key_of(item): item for item in answer["items"]}
        gone = [obj for key, obj in self._objects.items() if key not in fresh]
        self._objects = fresh
        self.synced.set()
        self._tell([*gone, *fresh.values()])

    async def _watch(self) -> None:
        async for event in self._connection.watch(self.resource.collection(), str(self._seen)):
            obj = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(obj.get("code", GONE), obj)
            self._seen = max(self._seen, _version(obj))
            if event["type"] == "DELETED":
                self._objects.pop(key_of(obj), None)
                self._tell([obj])
            elif event["type"] != "BOOKMARK":
                self._take(obj)

    def _take(self, obj: Object) -> None:
        known = self._objects.get(key_of(obj))
        if known is None or _version(known) <= _version(obj):
            self._objects[key_of(obj)] = obj
            self._tell([obj])

    def absorb(self, obj: Object) -> None:
        """Takes in the answer to a write, unless the watch is already past it."""
        known = self._objects.get(key_of(obj))
        if _version(obj) > max(self._seen, _version(known) if known else 0):
            self._objects[key_of(obj)] = obj
            self._tell([obj])

    def _tell(self, objects: Iterable[Object]) -> None:
        for obj in objects:
            for listener in self._listeners:
                listener(obj)


def _version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


class Cluster:
    """Reads from caches and writes through them; a resource must be among those it was made with to be read."""

    def __init__(self, connection: Connection, resources: Iterable[Resource]) -> None:
        self.connection = connection
        self.caches = {resource: Cache(connection, resource) for resource in resources}

    async def run(self) -> None:
        """Keeps all caches fresh, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self.caches.values():
                tasks.create_task(cache.run())

    async def synced(self) -> None:
        """Returns when every cache has its first list."""
        for cache in self.caches.values():
            await cache.synced.wait()

    def get(self, resource: Resource, key: Key) -> Object | None:
        return self.caches[resource].get(key)

    def find(self, resource: Resource, namespace: str = "") -> list[Object]:
        """The objects of one namespace, or of all."""
        cache = self.caches[resource]
        return list(cache.in_namespace(namespace) if namespace else cache)

    async def create(self, resource: Resource, body: Object) -> Object:
        """Creates the object in the namespace that its metadata name."""
        path = resource.collection(body["metadata"].get("namespace", ""))
        complete = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self._absorbed(resource, await self.connection.request("POST", path, body=complete))

    async def replace(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        """Replaces the object, or a subresource of it, if it still has the resourceVersion that ``obj`` has."""
        path = resource.path(key_of(obj)) + subresource
        return self._absorbed(resource, await self.connection.request("PUT", path, body=obj))

    async def patch(self, resource: Resource, key: Key, patch: Object | list[Any], *, subresource: str = "") -> Object:
        """Patches the object: a dictionary is a merge patch, a list a JSON patch."""
        kind = JSON_PATCH if isinstance(patch, list) else MERGE_PATCH
        path = resource.path(key) + subresource
        answer = await self.connection.request("PATCH", path, body=patch, content_type=kind)
        return self._absorbed(resource, answer)

    async def apply(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """Server-side apply of the object that the body's metadata name."""
        complete = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        answer = await self.connection.apply(resource.path(key_of(body)) + subresource, complete)
        return self._absorbed(resource, answer)

    async def delete(self, resource: Resource, obj: Object, *, now: bool = False) -> None:
        """Deletes this very object (its uid); ``now`` means grace period 0. Gone already is not an error."""
        options: Object = {"preconditions": {"uid": obj["metadata"]["uid"]}}
        if now:
            options["gracePeriodSeconds"] = 0
        try:
            await self.connection.request("DELETE", resource.path(key_of(obj)), body=options)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def _absorbed(self, resource: Resource, answer: Object) -> Object:
        if resource in self.caches:
            self.caches[resource].absorb(answer)
        return answer
