"""The watch protocol without I/O: chunks to lines, lines to events, and what a list and events make of known objects.

A stream is trusted line by line: a line that is no event (an HTML page, a line of absurd length) means that events may
be missing, so the caller lists again. An error inside a stream comes as an event in an answer with code 200, the expiry
of the resourceVersion (410) among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from kubevirt_csi.infra.resources import Object

LINE_LIMIT_BYTES = 16 * 1024**2
"""etcd keeps no object above 1.5 MiB, and JSON does not make ten times that of it."""

Item = TypeVar("Item")


class Distrusted(Exception):
    """The stream says something that is no event, or an error: what is known may be incomplete."""


class Kind(StrEnum):
    """The types of a watch event, ERROR apart, which is raised."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class Event:
    """One event and the object as of then; a bookmark's has nothing but a resourceVersion."""

    kind: Kind
    object: Object
    resource_version: str
    name: str


class Lines:
    """Cuts chunks into lines. What follows the last line feed is kept for the next chunk, and lost at the end."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that the chunk completes.

        Raises:
            Distrusted: a line is longer than the limit.
        """
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._extend(part)
            line, self._rest = bytes(self._rest), bytearray()
            if line.strip():
                yield line
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        self._rest += part
        if len(self._rest) > self._limit_bytes:
            raise Distrusted(f"a line of the watch is longer than {self._limit_bytes} bytes")


def parse_event(line: bytes) -> Event:
    """Reads one line.

    Raises:
        Distrusted: it is no event, or an ERROR event.
    """
    try:
        found = json.loads(line)
        if found["type"] == "ERROR":
            status = found["object"]
            raise Distrusted(f"the watch ended with {status.get('code')} {status.get('message')}")
        kind = Kind(found["type"])
        metadata = found["object"]["metadata"]
        name = "" if kind is Kind.BOOKMARK else str(metadata["name"])
        return Event(kind, found["object"], str(metadata["resourceVersion"]), name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Distrusted(f"a line of the watch is no event: {line[:100]!r}") from error


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: ``proceed`` is what the next request continues with, empty in the last part."""

    objects: list[Object]
    resource_version: str
    proceed: str


def parse_page(found: Object) -> Page:
    """Reads a list. What is not one must never pass for an empty one: all objects would be gone.

    Raises:
        Distrusted: it is no list, or one of objects without names.
    """
    try:
        metadata, objects = found["metadata"], found["items"] or []
        if not str(found["kind"]).endswith("List") or not metadata["resourceVersion"]:
            raise Distrusted(f"the answer is no list, but a {found['kind']}")
        if not all(item["metadata"]["name"] for item in objects):
            raise Distrusted("the list has objects without names")
        return Page(objects, str(metadata["resourceVersion"]), str(metadata.get("continue") or ""))
    except (AttributeError, KeyError, TypeError) as error:
        raise Distrusted(f"the answer is no list: {str(found)[:100]}") from error


def parsed(found: Object, parse: Callable[[Object], Item]) -> Item:
    """The object as ``parse`` reads it.

    Raises:
        ValueError: it cannot be read, for example because something in it is a list where ``parse`` expects a map.
    """
    try:
        return parse(found)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is not built as expected: {error!r}") from error


class Store(Generic[Item]):
    """The objects known from one list and the events since, each parsed, or kept as the reason why it cannot be.

    ``resource_version`` is None until the first list and after ``distrust``.
    """

    def __init__(self, parse: Callable[[Object], Item]) -> None:
        self._parse = parse
        self._items: dict[str, Item | ValueError] = {}
        self._versions: dict[str, str] = {}
        self.resource_version: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of all known objects."""
        return list(self._items)

    def find(self, name: str) -> Item | None:
        """The named object, None when there is none.

        Raises:
            ValueError: there is one, but it cannot be read.
        """
        found = self._items.get(name)
        if isinstance(found, ValueError):
            raise found
        return found

    def replace(self, objects: Iterable[Object], resource_version: str) -> set[str]:
        """Takes a complete list; returns the names of objects that appeared, changed or went."""
        items, versions = self._items, self._versions
        self._items, self._versions = {}, {}
        for found in objects:
            name, version = _identity(found)
            if version and versions.get(name) == version:  # parsing a namespace again would block others for a while
                self._items[name], self._versions[name] = items[name], version
            else:
                self._put(found)
        self.resource_version = resource_version
        names = versions.keys() | self._versions.keys()
        return {name for name in names if versions.get(name) != self._versions.get(name)}

    def apply(self, event: Event) -> set[str]:
        """Takes one event of a watch that began at ``resource_version``; returns the name of its object, if any."""
        self.resource_version = event.resource_version
        match event.kind:
            case Kind.BOOKMARK:
                return set()
            case Kind.DELETED:
                self._items.pop(event.name, None)
                self._versions.pop(event.name, None)
            case Kind.ADDED | Kind.MODIFIED:
                self._put(event.object)
        return {event.name}

    def distrust(self) -> None:
        """The next thing has to be a list. What is known stays readable until then."""
        self.resource_version = None

    def _put(self, found: Object) -> None:
        name, version = _identity(found)
        self._versions[name] = version
        try:
            self._items[name] = parsed(found, self._parse)
        except ValueError as error:
            self._items[name] = error


def _identity(found: Object) -> tuple[str, str]:
    """Name and resourceVersion."""
    metadata = found["metadata"]
    return str(metadata["name"]), str(metadata.get("resourceVersion", ""))
