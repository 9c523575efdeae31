"""The Controller service behind the RPC wrapper: deadlines, retries that join, and operations that must not overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.testing import ChannelFor

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.rpc.calls import Calls
from kubevirt_csi.rpc.gate import Gate
from kubevirt_csi.rpc.running import RunningMutations
from kubevirt_csi.services.controller import ControllerService
from tests.fakes.driver import Driver, node
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime

PUBLISH = csi.ControllerPublishVolumeRequest(
    volume_id="pvc-1",
    node_id=node("vm1"),
    volume_capability=csi.VolumeCapability(
        mount=csi.VolumeCapabilityMountVolume(fs_type="ext4"),
        access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_WRITER),
    ),
)
UNPUBLISH = csi.ControllerUnpublishVolumeRequest(volume_id="pvc-1", node_id=node("vm1"))


@pytest.fixture
def cluster() -> InfraCluster:
    cluster = InfraCluster()
    cluster.have_vm("vm1")
    cluster.have_volume("pvc-1")
    return cluster


@pytest.fixture
async def stub(cluster: InfraCluster) -> AsyncIterator[csi.ControllerStub]:
    driver, metrics = Driver(cluster), Metrics(role="controller").rpc
    service = ControllerService(provisioner=driver.provisioner, attacher=driver.attacher, detacher=driver.detacher)
    mutations = RunningMutations(counted=metrics.mutations_running)
    calls = Calls(gate=Gate(), mutations=mutations, metrics=metrics)
    async with ChannelFor([calls.wrap(service)]) as channel:
        yield csi.ControllerStub(channel)
        await mutations.cancel()


async def refused(call: object) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call  # type: ignore[misc]
    return caught.value


async def test_the_answer_comes_before_the_callers_deadline_with_the_reason_and_the_retry_goes_on(
    cluster: InfraCluster, stub: csi.ControllerStub
) -> None:
    cluster.timing.attach = lambda: 14.0
    began = asyncio.get_running_loop().time()
    error = await refused(stub.controller_publish_volume(PUBLISH, timeout=10))
    assert asyncio.get_running_loop().time() - began <= 10
    assert error.status is Status.DEADLINE_EXCEEDED
    assert "PVC is in phase Bound" in (error.message or "")
    answer = await stub.controller_publish_volume(PUBLISH, timeout=10)
    assert answer.publish_context["serial"]
    assert [verb for _, verb, _, _ in cluster.journal] == ["add"]


async def test_an_unpublish_during_a_publish_is_aborted_and_succeeds_after_it(
    cluster: InfraCluster, stub: csi.ControllerStub
) -> None:
    publish = asyncio.create_task(stub.controller_publish_volume(PUBLISH, timeout=60))
    await asyncio.sleep(1)
    error = await refused(stub.controller_unpublish_volume(UNPUBLISH, timeout=60))
    assert error.status is Status.ABORTED
    assert "vm1" in (error.message or "")
    await publish
    await stub.controller_unpublish_volume(UNPUBLISH, timeout=60)
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_an_error_that_nobody_foresaw_after_the_write_is_not_final(
    cluster: InfraCluster, stub: csi.ControllerStub
) -> None:
    cluster.fail("add_volume", RuntimeError("a defect"))
    error = await refused(stub.controller_publish_volume(PUBLISH, timeout=60))
    assert error.status is Status.UNAVAILABLE
    assert "a defect" not in (error.message or "")
