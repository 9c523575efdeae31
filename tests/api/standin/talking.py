"""How these tests talk to the management cluster: raw answers, and watches that are followed until something is so.

Only kube-apiserver is spoken to. Nothing of the stand-in is imported, so its answers are judged from outside.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from e2e.lab.kubeconfig import session

DEADLINE_SECONDS = 50.0  # the garbage collector takes up to 30 s to learn of a new kind of owner
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: the HTTP code and the text, which is a Status in most refusals."""

    code: int
    text: str

    @property
    def body(self) -> Object:
        decoded: Object = json.loads(self.text)
        return decoded

    @property
    def refusal(self) -> tuple[int, str, str]:
        """Code, reason and message of a Status."""
        return self.code, self.body["reason"], self.body["message"]

    def good(self) -> Object:
        """The decoded body of a success."""
        assert self.code < 300, self.text
        return self.body


class Client:
    """Requests with one credential."""

    def __init__(self, opened: aiohttp.ClientSession) -> None:
        self._session = opened

    async def call(self, method: str, path: str, body: Any = None, *, content_type: str = JSON) -> Answer:
        """One request; ``bytes`` are sent as they are."""
        async with self._request(method, path, body=body, content_type=content_type) as response:
            return Answer(code=response.status, text=await response.text())

    async def get(self, path: str) -> Object:
        return (await self.call("GET", path)).good()

    async def create(self, path: str, body: Object) -> Object:
        return (await self.call("POST", path, body)).good()

    async def patch(self, path: str, body: Object) -> Object:
        return (await self.call("PATCH", path, body, content_type=MERGE_PATCH)).good()

    async def delete(self, path: str) -> None:
        assert (await self.call("DELETE", path)).code in (200, 202, 404)

    async def follow(
        self,
        collection: str,
        name: str,
        until: Callable[[Object | None], object],
        *,
        since: str = "",
    ) -> list[Object | None]:
        """All states of the object up to the first that ``until`` accepts; None stands for its absence.

        ``since`` is the resourceVersion after which to begin; by default the present state is the first.
        """
        states: list[Object | None] = []
        pinned = bool(since)
        if not pinned:
            listed = await self.get(f"{collection}?fieldSelector=metadata.name%3D{name}")
            states.append(next(iter(listed["items"]), None))
            since = version_of(listed)
            if until(states[0]):
                return states
        async with _deadline(f"{collection}/{name}", states):
            async for event in self._events(collection, since=since, name=name):
                if event["type"] == "ERROR" and not pinned:
                    return await self.follow(collection, name, until)  # an API server that has just started
                states.append(None if event["type"] == "DELETED" else event["object"])
                if until(states[-1]):
                    return states
        raise AssertionError(f"the watch of {collection}/{name} has ended")

    async def follow_any(self, collection: str, until: Callable[[Object], object]) -> Object:
        """The first object of the collection that ``until`` accepts."""
        listed = await self.get(collection)
        for item in listed["items"]:
            if until(item):
                return dict(item)
        seen: list[Object | None] = []
        async with _deadline(collection, seen):
            async for event in self._events(collection, since=version_of(listed)):
                seen.append(event["object"])
                if event["type"] != "DELETED" and until(event["object"]):
                    return dict(event["object"])
        raise AssertionError(f"the watch of {collection} has ended")

    async def follow_count(self, collection: str, selector: str, count: int) -> None:
        """Returns when as many objects have the labels."""
        listed = await self.get(f"{collection}?labelSelector={quote(selector)}")
        present = {item["metadata"]["uid"] for item in listed["items"]}
        async with _deadline(collection, [listed]):
            if len(present) == count:
                return
            async for event in self._events(collection, since=version_of(listed), selector=selector):
                uid = event["object"]["metadata"]["uid"]
                present = present - {uid} if event["type"] == "DELETED" else present | {uid}
                if len(present) == count:
                    return
        raise AssertionError(f"the watch of {collection} has ended")

    async def _events(
        self, collection: str, *, since: str, name: str = "", selector: str = ""
    ) -> AsyncIterator[Object]:
        query = {"watch": "true", "resourceVersion": since, "labelSelector": selector}
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        async with self._request("GET", collection, query=query) as response:
            async for line in response.content:
                yield json.loads(line)

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            method,
            path,
            headers={"Content-Type": content_type, "Accept": JSON},
            params=query,
            data=body if isinstance(body, bytes | None) else json.dumps(body),
            timeout=aiohttp.ClientTimeout(),
        )


def version_of(obj: Object) -> str:
    version: str = obj["metadata"]["resourceVersion"]
    return version


@asynccontextmanager
async def _deadline(what: str, seen: list[Object | None]) -> AsyncIterator[None]:
    """Fails with the last state that was seen when what is waited for does not come."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield
    except TimeoutError as error:
        last = json.dumps(seen[-1] if seen else None, indent=1)
        raise AssertionError(f"{what} did not get there, last seen:\n{last}") from error


@asynccontextmanager
async def talk(kubeconfig: Path, *, account: str = "") -> AsyncIterator[Client]:
    """A client with the kubeconfig's credential, or one that acts as another account, which may do everything."""
    headers = {"Impersonate-User": account, "Impersonate-Group": "system:masters"} if account else {}
    async with session(kubeconfig, headers=headers) as opened:
        yield Client(opened)
