"""The controller's service on its real adapters, against the stand-in behind a real kube-apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.controller import controller_service
from kubevirt_csi.domain.nodeids import NodeNamespace
from kubevirt_csi.errors import FailedPrecondition, ResourceExhausted
from kubevirt_csi.infra.cluster import Infra
from kubevirt_csi.services.controller import ControllerService
from tests.api.infra.conftest import following
from tests.api.standin.conftest import StandIn
from tests.api.standin.site import Site

TENANT = {"csi.kubevirt.io/cluster": "tenant-a"}
SIZE = 64 * 2**20
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(fs_type="ext4"),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_WRITER),
)


@pytest.fixture
async def service(standin: StandIn, site: Site) -> AsyncIterator[ControllerService]:
    kubeconfig = standin.management.admin_kubeconfig
    async with Infra(kubeconfig=kubeconfig, namespace=site.namespace, labels=TENANT) as infra, following(infra):
        yield controller_service(
            volumes=infra.volumes, machines=infra.machines, nodes=NodeNamespace(name=site.namespace)
        )


def create(name: str) -> csi.CreateVolumeRequest:
    return csi.CreateVolumeRequest(
        name=name,
        capacity_range=csi.CapacityRange(required_bytes=SIZE),
        volume_capabilities=[CAPABILITY],
        parameters={"infraStorageClassName": "local-block"},
    )


def expand(name: str) -> csi.ControllerExpandVolumeRequest:
    return csi.ControllerExpandVolumeRequest(volume_id=name, capacity_range=csi.CapacityRange(required_bytes=2 * SIZE))


def publish(name: str, node_id: str) -> csi.ControllerPublishVolumeRequest:
    return csi.ControllerPublishVolumeRequest(volume_id=name, node_id=node_id, volume_capability=CAPABILITY)


async def test_volumes_are_made_attached_together_moved_and_deleted(service: ControllerService, site: Site) -> None:
    first, second = f"{site.namespace}/{await site.running_vm()}", f"{site.namespace}/{await site.running_vm()}"
    names = ["pvc-a", "pvc-b", "pvc-c"]
    async with asyncio.timeout(240):
        made = await asyncio.gather(*(service.create_volume(create(name)) for name in names))
        assert [answer.volume.capacity_bytes for answer in made if answer.volume is not None] == [SIZE] * 3
        published = await asyncio.gather(*(service.controller_publish_volume(publish(n, first)) for n in names))
        assert len({answer.publish_context["serial"] for answer in published}) == 3
        assert {answer.publish_context["content"] for answer in published} == {"none"}
        with pytest.raises(FailedPrecondition, match=first):
            await service.controller_publish_volume(publish("pvc-a", second))
        with pytest.raises(FailedPrecondition, match=first):
            await service.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-a"))
        await service.controller_unpublish_volume(
            csi.ControllerUnpublishVolumeRequest(volume_id="pvc-a", node_id=first)
        )
        moved = await service.controller_publish_volume(publish("pvc-a", second))
        assert moved.publish_context["content"] == "used"
        for name in names:
            await service.controller_unpublish_volume(csi.ControllerUnpublishVolumeRequest(volume_id=name))
            await service.delete_volume(csi.DeleteVolumeRequest(volume_id=name))
    assert (await site.client.get(site.datavolumes))["items"] == []


async def test_a_quota_is_told_in_its_own_words_and_leaves_nothing(service: ControllerService, site: Site) -> None:
    await site.quota({"requests.storage": "1Mi"})
    async with asyncio.timeout(120):
        with pytest.raises(ResourceExhausted, match="exceeded quota"):
            await service.create_volume(create("pvc-q"))
    assert (await site.client.get(site.datavolumes))["items"] == []
