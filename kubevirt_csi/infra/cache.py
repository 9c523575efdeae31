"""A list-watch cache of one resource of the infra namespace, with waiters.

It lists (in pages), watches from there with bookmarks, and goes on from the last resourceVersion when a stream ends. It
lists again when the version has expired or the stream cannot be trusted; objects that went meanwhile are found by
comparing. Between attempts that got nowhere it pauses, ever longer, with jitter. Readers get what is known; whether
that is fresh enough is for them to decide.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Generic, Never, TypeVar

import structlog

from kubevirt_csi.errors import DriverError, Internal, Unavailable
from kubevirt_csi.infra.answers import Expired, Missing
from kubevirt_csi.infra.changes import Changes
from kubevirt_csi.infra.connection import Connection, Pause
from kubevirt_csi.infra.resources import Call, Object, Resource, Verb
from kubevirt_csi.infra.watching import (
    LINE_LIMIT_BYTES,
    Distrusted,
    Lines,
    Page,
    Store,
    parse_event,
    parse_page,
)
from kubevirt_csi.waiting import Pauses

PAGE_OBJECTS = 250
WATCH_SECONDS = (240, 300)
"""How long the server is asked to keep a stream: by chance within, so that caches do not reconnect in step."""
IDLE_SECONDS = 90.0
"""A stream without a line for this long is taken for dead; kube-apiserver sends a bookmark about each minute."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 5.0
"""A stream that lasted this long got somewhere, even if nothing happened in it."""

Item = TypeVar("Item")

log = structlog.get_logger()


class Cache(Generic[Item]):
    """Objects of one resource, parsed by ``parse``, which raises ValueError for what it cannot read.

    ``selector`` is a set of labels that they must have. Changes are announced under the objects' names.
    """

    def __init__(
        self,
        connection: Connection,
        resource: Resource,
        *,
        parse: Callable[[Object], Item],
        changes: Changes,
        labels: Mapping[str, str] | None = None,
        pause: Pause = asyncio.sleep,
        idle_seconds: float = IDLE_SECONDS,
        page_objects: int = PAGE_OBJECTS,
        longest_line_bytes: int = LINE_LIMIT_BYTES,
    ) -> None:
        self.resource = resource
        self._connection = connection
        self._changes = changes
        self._selector = label_selector(labels or {})
        self._pause = pause
        self._idle_seconds = idle_seconds
        self._page_objects = page_objects
        self._longest_line_bytes = longest_line_bytes
        self._store = Store(parse)
        self._pauses = Pauses(first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        self._listed = False
        self._trouble: str | None = "not listed yet"

    @property
    def trouble(self) -> str | None:
        """Why it is not up to date, for people; None while it follows the server."""
        return self._trouble

    def find(self, name: str) -> Item | None:
        """The named object, None when there is none.

        Raises:
            Unavailable: nothing was listed yet.
            Internal: the object cannot be read.
        """
        self._require_list()
        try:
            return self._store.find(name)
        except ValueError as error:
            raise unreadable(self._connection, self.resource, name, error) from error

    @property
    def names(self) -> list[str]:
        """The names of all objects.

        Raises:
            Unavailable: nothing was listed yet.
        """
        self._require_list()
        return self._store.names

    async def run(self) -> Never:
        """Follows the server for ever; ends by cancellation or by a defect only."""
        while True:
            try:
                await self._follow()
            except (DriverError, Missing, Expired, Distrusted) as error:
                self._interrupted(error)
            await self._pause(self._pauses.next())

    async def _follow(self) -> None:
        """One list, if needed, and one watch, until its stream ends."""
        if self._store.resource_version is None:
            await self._list()
        now = asyncio.get_running_loop().time
        lines = Lines(limit_bytes=self._longest_line_bytes)
        async with (
            self._connection.stream(self._watch(), idle_seconds=self._idle_seconds) as chunks,
            aclosing(chunks),
        ):
            opened = now()
            self._established()
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    self._announce(self._store.apply(parse_event(line)))
                    self._pauses.reset()
        if now() - opened >= STEADY_SECONDS:
            self._pauses.reset()

    async def _list(self) -> None:
        objects: list[Object] = []
        version = ""
        selected = pages(self._connection, self.resource, selector=self._selector, objects=self._page_objects)
        async for page in selected:
            objects += page.objects
            version = page.resource_version
        changed = self._store.replace(objects, version)
        self._listed = True
        self._announce(changed)

    def _watch(self) -> Call:
        query = {
            "watch": "true",
            "resourceVersion": self._store.resource_version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 - spreads caches, no secret
        }
        return Call(verb=Verb.WATCH, resource=self.resource, query=query | self._selector)

    def _announce(self, names: set[str]) -> None:
        for name in names:
            self._changes.announce(name)

    def _established(self) -> None:
        """The stream is open again: who waited for a change looks once more, in case that time ran over it."""
        if self._trouble is not None:
            log.info("watch established", resource=self.resource.title, place=self._connection.place.cluster)
            self._trouble = None
            self._changes.announce_all()

    def _interrupted(self, error: Exception) -> None:
        if isinstance(error, (Expired, Distrusted)):
            self._store.distrust()
        self._trouble = str(error)
        log.warning("watch interrupted", resource=self.resource.title, error=str(error), relist=not self._known)

    @property
    def _known(self) -> bool:
        return self._store.resource_version is not None

    def _require_list(self) -> None:
        if not self._listed:
            place = self._connection.place
            raise Unavailable(
                f"{place.cluster}, namespace {place.namespace}: {self.resource.title} were not listed yet: "
                f"{self._trouble}"
            )


async def pages(
    connection: Connection, resource: Resource, *, selector: Mapping[str, str], objects: int = PAGE_OBJECTS
) -> AsyncIterator[Page]:
    """Lists a resource in pages of so many objects; the resourceVersion of each is that of the first.

    Raises:
        Expired: it took so long that the continuation is no longer kept.
        Unavailable: also when the answer is not a list; other errors as for any request.
    """
    query = {"limit": str(objects), **selector}
    proceed = True
    while proceed:
        call = Call(verb=Verb.LIST, resource=resource, query=query)
        answer = await connection.request(call)
        try:
            page = parse_page(answer)
        except Distrusted as error:
            raise Unavailable(connection.place.failed(call, str(error))) from error
        yield page
        proceed = bool(page.proceed)
        query = query | {"continue": page.proceed}


def label_selector(labels: Mapping[str, str]) -> dict[str, str]:
    """The query for objects that have all of the labels; empty for none."""
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}


def unreadable(connection: Connection, resource: Resource, name: str, error: ValueError) -> Internal:
    """The error about an object that this driver cannot read."""
    place = connection.place
    advice = "correct it by hand, or report a defect of the driver"
    return Internal(
        f"{place.cluster}, namespace {place.namespace}: {resource.title} {name!r} cannot be read: {error}; {advice}"
    )
