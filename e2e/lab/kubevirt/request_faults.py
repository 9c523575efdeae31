"""Answers that a fault orders instead of the truth: to addvolume and removevolume, and to new DataVolumes.

A fault that is to answer a number of requests is counted in its annotation, before the answer goes out, so everybody
sees what is left, and neither two requests at once nor a restart of the stand-in use it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from e2e.lab.kubevirt.connection import JSON_PATCH, ApiError, Connection
from e2e.lab.kubevirt.faults import PREFIX, Answer, faults_of, ordered, used_once
from e2e.lab.kubevirt.gates import KUBEVIRT_KEY
from e2e.lab.kubevirt.resources import KUBEVIRT, Key, Object, Resource

NOT_FOUND = 404
PATCH_TEST_FAILED = (NOT_FOUND, 422)
REFUSE_DATA_VOLUME = "refuse-datavolume"

Owner = tuple[Resource, Key, Object | None]


class DroppedError(Exception):
    """The caller is to see its connection dropped."""


async def ordered_faults(connection: Connection, resource: Resource, key: Key) -> Sequence[Owner]:
    """The objects that may order faults of requests about this machine, read afresh."""
    found = await asyncio.gather(_find(connection, resource, key), _find(connection, KUBEVIRT, KUBEVIRT_KEY))
    return (resource, key, found[0]), (KUBEVIRT, KUBEVIRT_KEY, found[1])


@asynccontextmanager
async def faulty(connection: Connection, owners: Sequence[Owner], *, action: str) -> AsyncIterator[Object | None]:
    """Around the carrying out of a hot-plug request: delays it, refuses it before, or answers wrongly after it.

    Yields the first of the objects if it is still as it was just read.

    Raises:
        ApiError: with the Status to answer.
        DroppedError: see there.
    """
    late = faults_of(*(obj for _, _, obj in owners)).virt_api_slow
    await asyncio.sleep(late)
    await _answer(connection, owners, f"refuse-{action}")
    yield None if late else owners[0][2]
    await _answer(connection, owners, f"lose-{action}")


async def refuse_data_volume(connection: Connection, *, dry_run: bool) -> None:
    """Before a DataVolume is admitted; a dry run is refused likewise and not counted.

    Raises:
        ApiError: with the Status to answer.
        DroppedError: see there.
    """
    owner = (KUBEVIRT, KUBEVIRT_KEY, await _find(connection, KUBEVIRT, KUBEVIRT_KEY))
    await _answer(connection, [owner], REFUSE_DATA_VOLUME, count=not dry_run)


async def _answer(connection: Connection, owners: Sequence[Owner], name: str, *, count: bool = True) -> None:
    """Raises what the first of the objects orders under this name."""
    for owner in owners:
        answer = await _use(connection, owner, name, count=count)
        if answer is not None and answer.code:
            raise ApiError(answer.code, answer.status())
        if answer is not None:
            raise DroppedError


async def _use(connection: Connection, owner: Owner, name: str, *, count: bool) -> Answer | None:
    """What the object orders, counted down where it is to be; None also when others have used it up meanwhile."""
    resource, key, obj = owner
    while True:
        answer: Answer | None = getattr(faults_of(obj), name.replace("-", "_"))
        if obj is None or answer is None or answer.times is None or not count:
            return answer
        try:
            await connection.request(
                "PATCH", resource.path(key), body=_counting(name, ordered(obj)[name]), content_type=JSON_PATCH
            )
        except ApiError as error:
            if error.status not in PATCH_TEST_FAILED:
                raise
            obj = await _find(connection, resource, key)
        else:
            return answer


def _counting(name: str, text: str) -> list[Object]:
    path = "/metadata/annotations/" + (PREFIX + name).replace("/", "~1")
    rest = used_once(text)
    change: Object = {"op": "remove"} if rest is None else {"op": "replace", "value": rest}
    return [{"op": "test", "path": path, "value": text}, change | {"path": path}]


async def _find(connection: Connection, resource: Resource, key: Key) -> Object | None:
    try:
        return await connection.request("GET", resource.path(key))
    except ApiError as error:
        if error.status == NOT_FOUND:
            return None
        raise
