"""The Node service through generated stubs, on a fake host: checks, codes, answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from grpclib.const import Status
from grpclib.testing import ChannelFor

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext
from kubevirt_csi.errors import DriverError, NotFound, Unavailable
from kubevirt_csi.services.node import NORMAL, NodeService
from tests.fakes.host import MIB, FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode

TARGET = "/kubelet/pods/a"
CONTEXT = PublishContext(serial=SERIAL, bus=Bus.VIRTIO, size_bytes=8 * MIB, content=Content.NONE).to_map()
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_MULTI_WRITER),
)
SHARED = csi.VolumeCapability(
    mount=csi.VolumeCapabilityMountVolume(),
    access_mode=csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode.MULTI_NODE_MULTI_WRITER),
)


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    host.plug("vdb", serial=SERIAL)
    return host


@pytest.fixture
def service(host: FakeHost) -> NodeService:
    return FakeNode(host, disk_wait_seconds=0.0).service()


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


async def test_info_tells_the_node_id_and_how_many_volumes_the_other_disks_leave(
    stub: csi.NodeStub, host: FakeHost
) -> None:
    host.plug("vda", serial="root")
    info = await stub.node_get_info(csi.NodeGetInfoRequest())
    assert (info.node_id, info.max_volumes_per_node, info.accessible_topology) == ("ns/vm1", 255, None)


async def test_only_what_is_true_is_advertised(stub: csi.NodeStub) -> None:
    found = await stub.node_get_capabilities(csi.NodeGetCapabilitiesRequest())
    assert [capability.rpc.type.name for capability in found.capabilities if capability.rpc] == [
        "STAGE_UNSTAGE_VOLUME",
        "EXPAND_VOLUME",
        "GET_VOLUME_STATS",
        "SINGLE_NODE_MULTI_WRITER",
        "VOLUME_CONDITION",
        "GET_VOLUME_HEALTH",
    ]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(stage(volume_id=""), Status.INVALID_ARGUMENT, id="stage without id"),
        pytest.param(stage(volume_id="x" * 129), Status.INVALID_ARGUMENT, id="stage with a long id"),
        pytest.param(stage(staging_target_path=""), Status.INVALID_ARGUMENT, id="stage without path"),
        pytest.param(stage(staging_target_path="a/b"), Status.INVALID_ARGUMENT, id="stage on a relative path"),
        pytest.param(stage(volume_capability=None), Status.INVALID_ARGUMENT, id="stage without capability"),
        pytest.param(stage(volume_capability=SHARED), Status.FAILED_PRECONDITION, id="stage beyond the capabilities"),
        pytest.param(
            stage(publish_context=CONTEXT | {"serial": "x" * 4096}),
            Status.INVALID_ARGUMENT,
            id="stage with a large map",
        ),
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
        pytest.param(
            publish(volume_capability=SHARED), Status.FAILED_PRECONDITION, id="publish beyond the capabilities"
        ),
        pytest.param(publish(volume_context={"x": "x" * 4096}), Status.INVALID_ARGUMENT, id="publish with a large map"),
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
        pytest.param(
            csi.NodeGetVolumeStatsRequest(volume_id="v", volume_path="/a\0b"),
            Status.INVALID_ARGUMENT,
            id="stats of no path",
        ),
        pytest.param(csi.NodeGetVolumeHealthRequest(), Status.INVALID_ARGUMENT, id="health without id"),
        pytest.param(
            csi.NodeGetVolumeHealthRequest(volume_id="v", volume_publish_path="some/path"),
            Status.INVALID_ARGUMENT,
            id="health at a relative path",
        ),
        pytest.param(
            csi.NodeGetVolumeHealthRequest(volume_id="v", staging_target_path=STAGING),
            Status.NOT_FOUND,
            id="health of an unknown volume",
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
        csi.NodeGetVolumeHealthRequest: service.node_get_volume_health,
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


async def test_the_mkfs_options_in_volume_context_reach_mkfs_beside_a_publish_context(
    host: FakeHost, service: NodeService
) -> None:
    await service.node_stage_volume(stage(volume_context={"bus": "virtio", "mkfsOptions": "-m 5"}))
    assert host.formats() == ["make ext4 on vdb -m 5"]


async def test_a_volume_grows_whether_or_not_the_capability_is_told(host: FakeHost, service: NodeService) -> None:
    """csi-sanity and older kubelets tell none."""
    await service.node_stage_volume(stage())
    host.change("vdb", size_bytes=16 * MIB)
    for capability in (None, CAPABILITY):
        grown = await service.node_expand_volume(
            csi.NodeExpandVolumeRequest(
                volume_id="pvc-1",
                volume_path=STAGING,
                capacity_range=csi.CapacityRange(required_bytes=16 * MIB),
                volume_capability=capability,
            )
        )
        assert grown.capacity_bytes == 16 * MIB


@pytest.mark.parametrize(
    ("message", "status"),
    [
        pytest.param({"volume_path": TARGET}, Status.INVALID_ARGUMENT, id="no id"),
        pytest.param({"volume_id": "pvc-1"}, Status.INVALID_ARGUMENT, id="no path"),
        pytest.param({"volume_id": "pvc-1", "volume_path": "some/path"}, Status.NOT_FOUND, id="a relative path"),
        pytest.param({"volume_id": "pvc-1", "volume_path": TARGET}, Status.NOT_FOUND, id="nothing mounted"),
        pytest.param(
            {
                "volume_id": "pvc-1",
                "volume_path": STAGING,
                "capacity_range": csi.CapacityRange(required_bytes=MIB, limit_bytes=2 * MIB),
            },
            Status.OUT_OF_RANGE,
            id="a limit below what the disk has",
        ),
    ],
)
async def test_a_growth_that_is_asked_for_wrongly_is_refused(
    service: NodeService, message: dict[str, Any], status: Status
) -> None:
    await service.node_stage_volume(stage())
    with pytest.raises(DriverError) as refused:
        await service.node_expand_volume(csi.NodeExpandVolumeRequest(**message))
    assert refused.value.status is status


async def test_a_healthy_volume_is_normal_in_both_languages(stub: csi.NodeStub) -> None:
    await stub.node_publish_volume(publish())
    stats = await stub.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET))
    assert stats.volume_condition == csi.VolumeCondition(abnormal=False, message=NORMAL)
    health = await stub.node_get_volume_health(
        csi.NodeGetVolumeHealthRequest(volume_id="pvc-1", volume_publish_path=TARGET, staging_target_path=STAGING)
    )
    assert health.volume_health == csi.VolumeHealth(volume_id="pvc-1", health_statuses=[])


async def test_an_ailing_volume_is_abnormal_in_both_languages(stub: csi.NodeStub, host: FakeHost) -> None:
    await stub.node_publish_volume(publish())
    host.ailments[TARGET] = [
        Ailment(Severity.DEGRADED, Reason.FILE_SYSTEM_ERRORS, "3 errors"),
        Ailment(Severity.INACCESSIBLE, Reason.IO_ERROR, "disk vdb cannot be read"),
    ]
    stats = await stub.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET))
    assert stats.usage[0].total == 100
    assert stats.volume_condition == csi.VolumeCondition(
        abnormal=True,
        message="since 2026-01-02T03:04:05Z: disk vdb cannot be read; since 2026-01-02T03:04:05Z: 3 errors",
    )
    health = await stub.node_get_volume_health(
        csi.NodeGetVolumeHealthRequest(volume_id="pvc-1", volume_publish_path=TARGET)
    )
    assert health.volume_health is not None
    entries = health.volume_health.health_statuses
    assert [(entry.status.name, entry.reason, entry.message) for entry in entries] == [
        ("INACCESSIBLE", "IoError", "since 2026-01-02T03:04:05Z: disk vdb cannot be read"),
        ("DEGRADED", "FileSystemErrors", "since 2026-01-02T03:04:05Z: 3 errors"),
    ]


@pytest.mark.looptime
async def test_a_volume_that_does_not_answer_is_abnormal_and_has_no_figures(
    service: NodeService, host: FakeHost
) -> None:
    await service.node_publish_volume(publish())
    host.hanging[TARGET] = []
    stats = await service.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET))
    assert stats.usage == []
    assert stats.volume_condition is not None
    assert stats.volume_condition.abnormal


async def test_texts_are_as_long_as_the_specification_allows_and_no_longer(
    service: NodeService, host: FakeHost
) -> None:
    await service.node_publish_volume(publish())
    host.ailments[TARGET] = [Ailment(Severity.INACCESSIBLE, Reason.IO_ERROR, "ä" * 200)]
    stats = await service.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET))
    assert stats.volume_condition is not None
    assert 125 < len(stats.volume_condition.message.encode()) <= 128
    assert stats.volume_condition.message.endswith("ä...")


async def test_a_volume_that_could_not_be_staged_tells_why_until_it_leaves(
    service: NodeService, host: FakeHost
) -> None:
    del host.disks["vdb"]
    with pytest.raises(Unavailable):
        await service.node_stage_volume(stage())
    asked = csi.NodeGetVolumeHealthRequest(volume_id="pvc-1", staging_target_path=STAGING)
    health = (await service.node_get_volume_health(asked)).volume_health
    assert health is not None
    assert [entry.reason for entry in health.health_statuses] == ["StagingFailed"]
    await service.node_unstage_volume(csi.NodeUnstageVolumeRequest(volume_id="pvc-1", staging_target_path=STAGING))
    with pytest.raises(NotFound):
        await service.node_get_volume_health(asked)


async def test_what_was_wrong_at_a_target_is_forgotten_with_it(stub: csi.NodeStub, host: FakeHost) -> None:
    await stub.node_publish_volume(publish())
    host.ailments[TARGET] = [Ailment(Severity.INACCESSIBLE, Reason.IO_ERROR, "no")]
    await stub.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id="pvc-1", volume_path=TARGET))
    asked = csi.NodeGetVolumeHealthRequest(volume_id="pvc-1", staging_target_path=STAGING)
    health = (await stub.node_get_volume_health(asked)).volume_health
    assert health is not None
    assert [entry.reason for entry in health.health_statuses] == ["IoError"]
    await stub.node_unpublish_volume(csi.NodeUnpublishVolumeRequest(volume_id="pvc-1", target_path=TARGET))
    health = (await stub.node_get_volume_health(asked)).volume_health
    assert health == csi.VolumeHealth(volume_id="pvc-1")
