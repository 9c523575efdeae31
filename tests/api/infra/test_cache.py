"""The list-watch cache against a real kube-apiserver that is compacted, killed and started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from e2e.lab.api import Api, ApiError, eventually
from e2e.lab.controlplane import API_SERVER, ControlPlane
from kubevirt_csi.infra.answers import Place
from kubevirt_csi.infra.cache import PAGE_OBJECTS, Cache
from kubevirt_csi.infra.changes import Changes
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.credentials import Credentials, from_kubeconfig
from kubevirt_csi.infra.resources import Resource
from tests.api.infra.conftest import running

CONFIG_MAPS = Resource("", "v1", "configmaps")
OURS = {"team": "storage"}
SECONDS = 60.0

pytestmark = pytest.mark.timeout(240)  # the API server is started up to five times in a test


class ConfigMaps:
    """Makes, changes and removes ConfigMaps from outside."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"

    async def create(self, name: str, value: str) -> None:
        body = {"metadata": {"name": name, "labels": OURS}, "data": {"value": value}}
        await self.api.create(self.path, body)

    async def set(self, name: str, value: str) -> None:
        await self.api.patch(f"{self.path}/{name}", {"data": {"value": value}})

    async def delete(self, name: str) -> None:
        await self.api.delete(f"{self.path}/{name}")

    async def all(self) -> dict[str, str]:
        found = await self.api.get(self.path, query={"labelSelector": "team=storage"})
        return {item["metadata"]["name"]: item["data"]["value"] for item in found["items"]}


@pytest.fixture
async def maps(management_api: Api, management_namespace: str) -> ConfigMaps:
    return ConfigMaps(management_api, management_namespace)


@pytest.fixture
async def connection(management: ControlPlane, management_namespace: str) -> AsyncIterator[Connection]:
    credentials = Credentials(from_kubeconfig(management.admin_kubeconfig), cluster="test cluster")
    yield Connection(credentials, place=Place(cluster="test cluster", namespace=management_namespace))
    await credentials.aclose()


def cache_of(
    connection: Connection,
    changes: Changes,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    *,
    page_objects: int = PAGE_OBJECTS,
) -> Cache[str]:
    return Cache(
        connection,
        CONFIG_MAPS,
        parse=lambda found: str(found["data"]["value"]),
        changes=changes,
        labels=OURS,
        pause=pause,
        page_objects=page_objects,
    )


def known(cache: Cache[str]) -> dict[str, str | None]:
    return {name: cache.find(name) for name in cache.names}


async def followed(cache: Cache[str]) -> None:
    async def untroubled() -> bool:
        return cache.trouble is None

    await eventually(untroubled, what="the cache follows the server", deadline_seconds=SECONDS)


async def value_becomes(cache: Cache[str], changes: Changes, name: str, wanted: str | None) -> None:
    """Waits as operations do: take the awaitable, read, await."""
    async with asyncio.timeout(SECONDS):
        while True:
            changed = changes.after_now(name)
            if cache.find(name) == wanted:
                return
            await changed


async def test_waiters_see_objects_appear_change_and_go(connection: Connection, maps: ConfigMaps) -> None:
    changes = Changes()
    cache = cache_of(connection, changes)
    await maps.create("early", "0")
    async with running(cache.run()):
        await followed(cache)
        assert cache.find("early") == "0"
        await maps.create("one", "1")
        await value_becomes(cache, changes, "one", "1")
        await maps.set("one", "2")
        await value_becomes(cache, changes, "one", "2")
        await maps.delete("one")
        await value_becomes(cache, changes, "one", None)
        assert known(cache) == {"early": "0"}


async def test_an_object_whose_labels_no_longer_match_is_gone(connection: Connection, maps: ConfigMaps) -> None:
    changes = Changes()
    cache = cache_of(connection, changes)
    async with running(cache.run()):
        await followed(cache)
        await maps.create("moving", "1")
        await value_becomes(cache, changes, "moving", "1")
        await maps.api.patch(f"{maps.path}/moving", {"metadata": {"labels": {"team": "network"}}})
        await value_becomes(cache, changes, "moving", None)
        await maps.api.patch(f"{maps.path}/moving", {"metadata": {"labels": {"team": "storage"}}})
        await value_becomes(cache, changes, "moving", "1")


async def test_a_long_list_is_read_page_by_page(connection: Connection, maps: ConfigMaps) -> None:
    for number in range(5):
        await maps.create(f"map-{number}", str(number))
    cache = cache_of(connection, Changes(), page_objects=2)
    async with running(cache.run()):
        await followed(cache)
        assert known(cache) == {f"map-{number}": str(number) for number in range(5)}


async def test_an_expired_version_leads_to_a_new_list_that_wakes_waiters_of_removed_objects(
    management: ControlPlane, connection: Connection, maps: ConfigMaps
) -> None:
    """While the cache is held between two attempts, the API server forgets the versions that it would go on from."""
    gate = asyncio.Event()
    gate.set()

    async def pause(seconds: float) -> None:
        await gate.wait()
        await asyncio.sleep(seconds)

    changes = Changes()
    cache = cache_of(connection, changes, pause)
    await maps.create("stays", "1")
    await maps.create("goes", "1")
    with capture_logs() as logs:
        async with running(cache.run()):
            await followed(cache)
            gate.clear()
            await management.kill(API_SERVER)
            await management.start(API_SERVER)
            await maps.delete("goes")
            await maps.set("stays", "2")
            await maps.create("comes", "3")
            await management.compact()
            await management.kill(API_SERVER)  # its own memory of old versions goes with it
            await management.start(API_SERVER)
            assert known(cache) == {"stays": "1", "goes": "1"}
            gate.set()
            await value_becomes(cache, changes, "goes", None)
            assert known(cache) == {"stays": "2", "comes": "3"}
            await followed(cache)
            await maps.set("comes", "4")
            await value_becomes(cache, changes, "comes", "4")
    relisted = [entry for entry in logs if entry["event"] == "watch interrupted" and entry["relist"]]
    assert relisted
    assert "410" in relisted[0]["error"]


async def test_nothing_is_missed_while_the_server_is_killed_and_compacted_again_and_again(
    management: ControlPlane, connection: Connection, maps: ConfigMaps
) -> None:
    changes = Changes()
    cache = cache_of(connection, changes)
    names = [f"map-{number}" for number in range(8)]
    done = asyncio.Event()

    async def churn(chance: random.Random) -> None:
        while not done.is_set():
            name, value = chance.choice(names), str(chance.randrange(10**6))
            with suppress(ApiError):
                match chance.randrange(3):
                    case 0:
                        await maps.create(name, value)
                    case 1:
                        await maps.set(name, value)
                    case _:
                        await maps.delete(name)
            await asyncio.sleep(0.005)

    async with running(cache.run()):
        await followed(cache)
        async with asyncio.TaskGroup() as tasks:
            for seed in range(2):
                tasks.create_task(churn(random.Random(seed)))  # noqa: S311 - a schedule, no secret
            for _ in range(2):
                await management.compact()
                await management.kill(API_SERVER)
                await management.start(API_SERVER)
                await asyncio.sleep(0.5)  # lets changes happen between two crashes
            done.set()
        final = await maps.all()
        for name in names:
            await value_becomes(cache, changes, name, final.get(name))
        assert known(cache) == final
