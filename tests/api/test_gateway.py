"""The gateway in front of a real kube-apiserver: what a client with an ordinary kubeconfig sees through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.lab.controlplane import ControlPlane
from e2e.lab.gateway import Door, Gateway, serve
from e2e.lab.kubevirt.connection import ApiError, Connection, connect
from e2e.lab.pki import write_private
from e2e.lab.ports import Ports

NAMESPACES = "/api/v1/namespaces"


@pytest.fixture
async def gateway(management: ControlPlane) -> AsyncIterator[Gateway]:
    with Ports() as ports:
        async with serve(port=ports.take(), target=management.port) as gateway:
            yield gateway


@pytest.fixture
async def connection(management: ControlPlane, gateway: Gateway, tmp_path: Path) -> AsyncIterator[Connection]:
    """A client whose kubeconfig names the gateway and trusts the cluster's authority."""
    credential = management.client_kubeconfig("admin", ["system:masters"], server=gateway.server)
    async with connect(write_private(tmp_path / "kubeconfig", credential)) as connection:
        yield connection


async def test_requests_pass_and_the_servers_certificate_is_good_for_the_gateway(
    gateway: Gateway, connection: Connection
) -> None:
    assert (await connection.request("GET", f"{NAMESPACES}/default"))["metadata"]["name"] == "default"
    assert gateway.connections == 1


async def test_a_service_accounts_kubeconfig_can_lead_through_the_gateway(
    management: ControlPlane, gateway: Gateway, tmp_path: Path
) -> None:
    path = await management.token_kubeconfig(
        tmp_path / "token", namespace="default", account="default", server=gateway.server
    )
    async with connect(path) as connection:
        with pytest.raises(ApiError, match="system:serviceaccount:default:default"):  # known, and forbidden
            await connection.request("GET", NAMESPACES)
    assert gateway.server in path.read_text()


async def test_a_watch_breaks_when_connections_are_closed_and_the_next_request_is_answered(
    gateway: Gateway, connection: Connection
) -> None:
    events = connection.watch(NAMESPACES, "0")
    assert (await anext(events))["type"] == "ADDED"
    assert await gateway.close_connections() == 1
    with pytest.raises(ApiError, match="watch of /api/v1/namespaces"):
        async for _ in events:
            pass
    assert (await connection.request("GET", f"{NAMESPACES}/default"))["metadata"]["name"] == "default"


async def test_a_server_that_is_gone_is_not_reached_and_found_again(gateway: Gateway, connection: Connection) -> None:
    await connection.request("GET", NAMESPACES)
    await gateway.become(Door(mode="gone"))
    with pytest.raises(ApiError, match="503"):
        await connection.request("GET", NAMESPACES)
    await gateway.become(Door())
    assert (await connection.request("GET", f"{NAMESPACES}/default"))["metadata"]["name"] == "default"
