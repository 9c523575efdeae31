"""Fixtures of the API tier: a real management control plane, one for the whole session.

It is not tied to an event loop, so tests keep loops of their own. Tests take namespaces of their own
(`management_namespace`) instead of cleaning the cluster.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest

from e2e.lab.api import Api
from e2e.lab.controlplane import ControlPlane
from e2e.tools.build import build
from tests.api.loops import Loop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Says in which event loop each test runs."""
    return {"farewells": Loop}


@pytest.fixture(scope="session")
def management(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager of a management cluster, without KubeVirt."""
    plane = ControlPlane("management", tmp_path_factory.mktemp("management"), build("kubernetes"))
    with asyncio.Runner() as runner:
        runner.run(plane.__aenter__())
        try:
            yield plane
        finally:
            runner.run(plane.__aexit__(None, None, None))


@pytest.fixture
async def management_api(management: ControlPlane) -> AsyncIterator[Api]:
    """A connection to the management cluster as its administrator."""
    async with management.api() as api:
        yield api


@pytest.fixture
async def management_namespace(management_api: Api) -> AsyncIterator[str]:
    """The name of a fresh namespace of the management cluster."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await management_api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield name
    await management_api.delete(f"/api/v1/namespaces/{name}")
