"""The Node service through generated stubs, on a fake host: checks, codes, answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.testing import ChannelFor

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from kubevirt_csi.errors import DriverError
from kubevirt_csi.services.node import NodeService
from tests.fakes.host import MIB, FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode

TARGET = "/kubelet/pods/a"
CONTEXT = PublishContext(serial=SERIAL, bus=Bus.VIRTIO, size_bytes=8 * MIB, content=Content.NONE).to_map()
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_MULTI_WRITER),
)


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    host.plug("vdb", serial=SERIAL)
    return host


@pytest.fixture
def service(host: FakeHost) -> NodeService:
    node = FakeNode(host, disk_wait_seconds=0.0)
    return NodeService(
        node_id="ns/vm1", topology={}, staging=node.staging, publishing=node.publishing, usage=node.usage
    )


@pytest_asyncio.fixture
async def stub(service: NodeService) -> AsyncIterator[csi.NodeStub]:
    async with ChannelFor([service]) as channel:
        yield csi.NodeStub(channel)


def stage(**changes: object) -> csi.NodeStageVolumeRequest:
    plain: dict[str, object] = {
        "volume_id": "pvc-1",
        "staging_target_path": STAGING,
        "volume_capability": CAPABILITY,
        "publish_context": CONTEXT,
    }
    return csi.NodeStageVolumeRequest(**(plain | changes))  # type: ignore[arg-type] # a test names fields of the message


def publish(**changes: object) -> csi.NodePublishVolumeRequest:
    plain: dict[str, object] = {
        "volume_id": "pvc-1",
        "staging_target_path": STAGING,
        "target_path": TARGET,
        "volume_capability": CAPABILITY,
        "publish_context": CONTEXT,
    }
    return csi.NodePublishVolumeRequest(**(plain | changes))  # type: ignore[arg-type] # the same


async def test_a_volume_goes_through_its_life(stub: csi.NodeStub, host: FakeHost) -> None:
    await stub.node_stage_volume(stage())
    await stub.node_publish_volume(publish())
    stats = await stub.node_get_volume_stats(
        csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET, staging_target_path=STAGING)
    )
    assert [(usage.unit, usage.total, usage.available, usage.used) for usage in stats.usage] == [
        (csi.VolumeUsageUnit.BYTES, 100, 60, 40),
        (csi.VolumeUsageUnit.INODES, 10, 7, 3),
    ]
    await stub.node_unpublish_volume(csi.NodeUnpublishVolumeRequest(volume_id="pvc-1", target_path=TARGET))
    await stub.node_unstage_volume(csi.NodeUnstageVolumeRequest(volume_id="pvc-1", staging_target_path=STAGING))
    assert host.mounts == []


async def test_a_raw_volume_has_one_figure(stub: csi.NodeStub) -> None:
    block = csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume(), access_mode=CAPABILITY.access_mode)
    await stub.node_publish_volume(publish(volume_capability=block))
    stats = await stub.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET))
    assert [(usage.unit, usage.total) for usage in stats.usage] == [(csi.VolumeUsageUnit.BYTES, 8 * MIB)]


async def test_info_tells_the_node_id_and_no_limit(stub: csi.NodeStub) -> None:
    info = await stub.node_get_info(csi.NodeGetInfoRequest())
    assert (info.node_id, info.max_volumes_per_node, info.accessible_topology) == ("ns/vm1", 0, None)


async def test_only_what_is_true_is_advertised(stub: csi.NodeStub) -> None:
    found = await stub.node_get_capabilities(csi.NodeGetCapabilitiesRequest())
    assert [capability.rpc.type.name for capability in found.capabilities if capability.rpc] == [
        "STAGE_UNSTAGE_VOLUME",
        "GET_VOLUME_STATS",
        "SINGLE_NODE_MULTI_WRITER",
    ]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(stage(volume_id=""), Status.INVALID_ARGUMENT, id="stage without id"),
        pytest.param(stage(volume_id="x" * 129), Status.INVALID_ARGUMENT, id="stage with a long id"),
        pytest.param(stage(staging_target_path=""), Status.INVALID_ARGUMENT, id="stage without path"),
        pytest.param(stage(staging_target_path="a/b"), Status.INVALID_ARGUMENT, id="stage on a relative path"),
        pytest.param(stage(volume_capability=None), Status.INVALID_ARGUMENT, id="stage without capability"),
        pytest.param(stage(publish_context={}), Status.INVALID_ARGUMENT, id="stage without serial"),
        pytest.param(
            stage(publish_context=CONTEXT | {"serial": "gone"}),
            Status.UNAVAILABLE,
            id="stage of a disk that is not here",
        ),
        pytest.param(publish(volume_id=""), Status.INVALID_ARGUMENT, id="publish without id"),
        pytest.param(publish(target_path=""), Status.INVALID_ARGUMENT, id="publish without target"),
        pytest.param(publish(volume_capability=None), Status.INVALID_ARGUMENT, id="publish without capability"),
        pytest.param(publish(staging_target_path=""), Status.FAILED_PRECONDITION, id="publish without staging path"),
        pytest.param(publish(publish_context={}), Status.INVALID_ARGUMENT, id="publish without serial"),
        pytest.param(csi.NodeUnpublishVolumeRequest(target_path="/a"), Status.INVALID_ARGUMENT, id="unpublish: no id"),
        pytest.param(csi.NodeUnpublishVolumeRequest(volume_id="v"), Status.INVALID_ARGUMENT, id="unpublish: no target"),
        pytest.param(csi.NodeUnstageVolumeRequest(volume_id="v"), Status.INVALID_ARGUMENT, id="unstage: no path"),
        pytest.param(
            csi.NodeUnstageVolumeRequest(staging_target_path="/a"), Status.INVALID_ARGUMENT, id="unstage: no id"
        ),
        pytest.param(csi.NodeGetVolumeStatsRequest(volume_path="/a"), Status.INVALID_ARGUMENT, id="stats without id"),
        pytest.param(csi.NodeGetVolumeStatsRequest(volume_id="v"), Status.INVALID_ARGUMENT, id="stats without path"),
        pytest.param(
            csi.NodeGetVolumeStatsRequest(volume_id="v", volume_path="some/path"),
            Status.NOT_FOUND,
            id="stats of no mount",
        ),
    ],
)
async def test_a_bad_request_is_refused_with_the_code_of_the_specification_and_touches_nothing(
    service: NodeService, host: FakeHost, request_: object, status: Status
) -> None:
    methods: dict[type, Callable[..., Awaitable[object]]] = {
        csi.NodeStageVolumeRequest: service.node_stage_volume,
        csi.NodePublishVolumeRequest: service.node_publish_volume,
        csi.NodeUnpublishVolumeRequest: service.node_unpublish_volume,
        csi.NodeUnstageVolumeRequest: service.node_unstage_volume,
        csi.NodeGetVolumeStatsRequest: service.node_get_volume_stats,
    }
    with pytest.raises(DriverError) as refused:
        await methods[type(request_)](request_)
    assert refused.value.status is status
    assert host.calls == []
    assert host.folders == set()


async def test_the_serial_in_volume_context_counts_only_when_there_is_no_publish_context(service: NodeService) -> None:
    with pytest.raises(DriverError) as refused:
        await service.node_stage_volume(stage(publish_context={"bus": "scsi"}, volume_context={"serial": SERIAL}))
    assert refused.value.status is Status.INVALID_ARGUMENT
    await service.node_stage_volume(stage(publish_context={}, volume_context={"serial": SERIAL, "bus": "virtio"}))


async def test_growing_is_not_implemented_and_says_so(stub: csi.NodeStub) -> None:
    with pytest.raises(GRPCError) as refused:
        await stub.node_expand_volume(csi.NodeExpandVolumeRequest(volume_id="pvc-1", volume_path=TARGET))
    assert refused.value.status is Status.UNIMPLEMENTED
