"""The controller's service on the stand-in of KubeVirt and CDI: real operations, adapters and kube-apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from e2e.lab.api import eventually
from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.controller import controller_service
from kubevirt_csi.domain.capacity import MIB
from kubevirt_csi.domain.nodeids import NodeNamespace
from kubevirt_csi.infra.cluster import Infra
from kubevirt_csi.observe import context
from kubevirt_csi.observe.context import Work
from kubevirt_csi.services.controller import ControllerService
from tests.api.infra.conftest import TENANT, following
from tests.api.standin.conftest import (  # noqa: F401 - its fixtures
    StandIn,
    audit,
    client,
    kubevirt,
    management,
    management_namespace,
    site,
    standin,
)
from tests.api.standin.site import Site
from tests.api.standin.talking import Object

Answer = TypeVar("Answer")

SECONDS = 90.0
SIZE = 16 * MIB
WRITER = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(fs_type="ext4"),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_MULTI_WRITER),
)


@dataclass(frozen=True, slots=True)
class Controller:
    """The calls that sidecars make, for volumes and VMs of one namespace."""

    service: ControllerService
    site: Site

    async def create(self, name: str, *, storage_class: str = "", size: int = SIZE, limit: int = 0) -> csi.Volume:
        parameters = {"infraStorageClassName": storage_class} if storage_class else {}
        request = csi.CreateVolumeRequest(
            name=name,
            capacity_range=csi.CapacityRange(required_bytes=size, limit_bytes=limit),
            volume_capabilities=[WRITER],
            parameters=parameters,
        )
        made = (await _bounded(self.service.create_volume(request))).volume
        assert made is not None
        return made

    async def publish(self, name: str, vm: str) -> dict[str, str]:
        request = csi.ControllerPublishVolumeRequest(
            volume_id=name, node_id=f"{self.site.namespace}/{vm}", volume_capability=WRITER
        )
        return dict((await _bounded(self.service.controller_publish_volume(request))).publish_context)

    async def unpublish(self, name: str, vm: str) -> None:
        request = csi.ControllerUnpublishVolumeRequest(volume_id=name, node_id=f"{self.site.namespace}/{vm}")
        await _bounded(self.service.controller_unpublish_volume(request))

    async def expand(self, name: str, size: int, *, limit: int = 0) -> int:
        request = csi.ControllerExpandVolumeRequest(
            volume_id=name, capacity_range=csi.CapacityRange(required_bytes=size, limit_bytes=limit)
        )
        grown = await _bounded(self.service.controller_expand_volume(request))
        assert grown.node_expansion_required
        return grown.capacity_bytes

    async def delete(self, name: str) -> None:
        await _bounded(self.service.delete_volume(csi.DeleteVolumeRequest(volume_id=name)))

    async def claim(self, name: str) -> Object:
        return await self.site.client.get(f"{self.site.claims}/{name}")


def begin(call: Coroutine[Any, Any, Answer]) -> tuple[asyncio.Task[Answer], Work]:
    """Starts a call; what it waits for can be read from its work."""
    context.begin(work := Work())
    return asyncio.create_task(call), work


async def told(work: Work, words: str) -> None:
    """Returns when the call says that it waits for something with these words."""

    async def says() -> bool:
        return words in work.waiting_for

    try:
        await eventually(says, what=f"the wait tells {words!r}", deadline_seconds=SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"{error}; it tells {work.waiting_for!r}") from error


async def _bounded(call: Coroutine[Any, Any, Answer]) -> Answer:
    async with asyncio.timeout(SECONDS):
        return await call


@pytest.fixture
async def infra(standin: StandIn, site: Site) -> AsyncIterator[Infra]:  # noqa: F811 - the fixtures
    kubeconfig = standin.management.admin_kubeconfig
    async with (
        Infra(kubeconfig=kubeconfig, namespace=site.namespace, labels=TENANT) as opened,
        following(opened, seconds=SECONDS),
    ):
        yield opened


@pytest.fixture
def controller(infra: Infra, site: Site) -> Controller:  # noqa: F811 - the fixture
    nodes = NodeNamespace(name=site.namespace)
    return Controller(controller_service(volumes=infra.volumes, machines=infra.machines, nodes=nodes), site)
