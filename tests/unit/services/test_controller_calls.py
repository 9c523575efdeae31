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
EXPAND = csi.ControllerExpandVolumeRequest(
    volume_id="pvc-1", capacity_range=csi.CapacityRange(required_bytes=2 * 2**30)
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
    service = ControllerService(
        provisioner=driver.provisioner, attacher=driver.attacher, detacher=driver.detacher, expander=driver.expander
    )
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


async def test_a_growth_answers_with_the_size_and_wants_the_node_to_do_its_part(stub: csi.ControllerStub) -> None:
    answer = await stub.controller_expand_volume(EXPAND, timeout=60)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (2 * 2**30, True)


async def test_a_growth_that_outlives_its_call_tells_the_reason_and_its_retry_joins_it(
    cluster: InfraCluster, stub: csi.ControllerStub
) -> None:
    cluster.timing.grow = 14.0
    error = await refused(stub.controller_expand_volume(EXPAND, timeout=10))
    assert error.status is Status.DEADLINE_EXCEEDED
    assert "asks for 2147483648 bytes and has 1073741824" in (error.message or "")
    reads = cluster.reads["get_volume"]
    assert (await stub.controller_expand_volume(EXPAND, timeout=10)).capacity_bytes == 2 * 2**30
    assert cluster.reads["get_volume"] == reads


async def test_a_growth_and_an_attach_of_one_volume_do_not_overlap(
    cluster: InfraCluster, stub: csi.ControllerStub
) -> None:
    growing = asyncio.create_task(stub.controller_expand_volume(EXPAND, timeout=60))
    await asyncio.sleep(1)
    assert (await refused(stub.controller_publish_volume(PUBLISH, timeout=60))).status is Status.ABORTED
    await growing
    assert cluster.journal == []


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param({"volume_id": ""}, Status.INVALID_ARGUMENT, id="no id"),
        pytest.param({"capacity_range": None}, Status.INVALID_ARGUMENT, id="no range"),
        pytest.param({"capacity_range": csi.CapacityRange()}, Status.INVALID_ARGUMENT, id="an empty range"),
        pytest.param(
            {"capacity_range": csi.CapacityRange(required_bytes=-1)}, Status.INVALID_ARGUMENT, id="a negative size"
        ),
        pytest.param({"volume_capability": csi.VolumeCapability()}, Status.INVALID_ARGUMENT, id="a bad capability"),
        pytest.param({"volume_id": "Not_A_Volume"}, Status.NOT_FOUND, id="an impossible id"),
        pytest.param({"volume_id": "pvc-9"}, Status.NOT_FOUND, id="an unknown id"),
    ],
)
async def test_a_growth_that_is_asked_for_wrongly_is_refused(
    stub: csi.ControllerStub, request_: dict[str, object], status: Status
) -> None:
    message = csi.ControllerExpandVolumeRequest(volume_id="pvc-1", capacity_range=EXPAND.capacity_range)
    for name, value in request_.items():
        setattr(message, name, value)
    assert (await refused(stub.controller_expand_volume(message, timeout=60))).status is status
