"""Credentials that change while the driver runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from e2e.lab.pki import Authority
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.credentials import Credentials, from_kubeconfig, in_cluster
from kubevirt_csi.infra.resources import CLAIMS, Call, Verb
from tests.unit.infra.fake_api import PLACE, Clock, FakeApi, Handler, status

READ = Call(verb=Verb.GET, resource=CLAIMS, name="pvc-1")
UPDATE = Call(verb=Verb.PATCH, resource=CLAIMS, name="pvc-1", body={})


def accepting(token: str) -> Handler:
    """Accepts this token only."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == f"Bearer {token}":
            return web.json_response({"kind": "PersistentVolumeClaim"})
        return await status(401, "Unauthorized", "Unauthorized")(request)

    return handle


async def test_a_changed_kubeconfig_is_used_by_the_next_request(
    connection: Connection, api: FakeApi, tmp_path: Path
) -> None:
    api.answers(accepting("first"))
    await connection.request(READ)
    api.kubeconfig(tmp_path / "kubeconfig", token="second")  # noqa: S106 - no secret
    api.answers(accepting("second"))
    await connection.request(READ)
    assert [seen.headers["Authorization"] for seen in api.seen] == ["Bearer first", "Bearer second"]


async def test_a_refused_token_is_read_anew_once_and_the_write_sent_again(
    api: FakeApi, tmp_path: Path, clock: Clock
) -> None:
    """A token file is not watched: only the refusal tells that it changed."""
    token = tmp_path / "token"
    token.write_text("first\n")
    config = api.kubeconfig(tmp_path / "kubeconfig")
    config.write_text(config.read_text().replace('"token": "first"', f'"tokenFile": "{token}"'))
    credentials = Credentials(from_kubeconfig(config), cluster="infra cluster")
    connection = Connection(credentials, place=PLACE, pause=clock.pause, now=clock.now)
    api.answers(accepting("first"))
    await connection.request(UPDATE)
    token.write_text("second\n")
    api.answers(accepting("second"))
    await connection.request(UPDATE)
    assert [seen.headers["Authorization"] for seen in api.seen][-2:] == ["Bearer first", "Bearer second"]
    api.answers(accepting("third"))
    with pytest.raises(Unavailable, match="401 Unauthorized; check the credentials"):
        await connection.request(UPDATE)
    assert len(api.seen) == 5
    await credentials.aclose()


async def test_a_request_under_way_ends_with_the_credentials_that_it_began_with(
    connection: Connection, api: FakeApi, tmp_path: Path
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        arrived.set()
        await go_on.wait()
        return web.json_response({"slow": True})

    api.answers(slow, accepting("second"))
    first = asyncio.create_task(connection.request(READ))
    await arrived.wait()
    api.kubeconfig(tmp_path / "kubeconfig", token="second")  # noqa: S106 - no secret
    await connection.request(READ)
    go_on.set()
    assert await first == {"slow": True}


async def test_a_broken_kubeconfig_leaves_the_old_credentials_in_use(
    connection: Connection, api: FakeApi, tmp_path: Path
) -> None:
    api.answers(accepting("first"))
    await connection.request(READ)
    (tmp_path / "kubeconfig").write_text("{")
    await connection.request(READ)
    api.kubeconfig(tmp_path / "kubeconfig", token="second")  # noqa: S106 - no secret
    api.answers(accepting("second"))
    await connection.request(READ)


async def test_without_any_credentials_calls_are_unavailable_until_the_file_is_there(
    api: FakeApi, tmp_path: Path, clock: Clock
) -> None:
    credentials = Credentials(from_kubeconfig(tmp_path / "later"), cluster="infra cluster")
    connection = Connection(credentials, place=PLACE, pause=clock.pause, now=clock.now)
    with pytest.raises(Unavailable, match="infra cluster: its credentials cannot be read"):
        await connection.request(READ)
    api.kubeconfig(tmp_path / "later")
    api.answers(accepting("first"))
    await connection.request(READ)
    await credentials.aclose()


async def test_the_account_of_the_pod_follows_its_token_file(tmp_path: Path) -> None:
    authority, token = tmp_path / "ca.crt", tmp_path / "token"
    authority.write_bytes(Authority("test").pair.certificate)
    token.write_text("first")
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    credentials = Credentials(
        in_cluster(token=token, authority=authority, environment=environment), cluster="infra cluster"
    )
    async with credentials.client() as client:
        assert client.configuration.host == "https://127.0.0.1:1"
        assert client.configuration.api_key["BearerToken"] == "Bearer first"
    (tmp_path / "next").write_text("second")
    (tmp_path / "next").rename(token)
    async with credentials.client() as client:
        assert client.configuration.api_key["BearerToken"] == "Bearer second"
    await credentials.aclose()
