"""The Controller service over real messages: what is refused before anything is asked, and what the answers carry."""

from __future__ import annotations

import pytest

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange
from kubevirt_csi.services.controller import ControllerService
from tests.fakes.driver import Driver, node
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime

Mode = csi.VolumeCapabilityAccessModeMode
GIB = 2**30


@pytest.fixture
def cluster() -> InfraCluster:
    cluster = InfraCluster()
    cluster.have_vm("vm1")
    cluster.have_vm("vm2")
    return cluster


@pytest.fixture
def service(cluster: InfraCluster) -> ControllerService:
    driver = Driver(cluster)
    return ControllerService(
        provisioner=driver.provisioner, attacher=driver.attacher, detacher=driver.detacher, expander=driver.expander
    )


def capability(
    mode: Mode | int = Mode.SINGLE_NODE_WRITER, *, block: bool = False, fs_type: str = "ext4"
) -> csi.VolumeCapability:
    access_mode = csi.VolumeCapabilityAccessMode(mode=mode)  # type: ignore[arg-type]
    if block:
        return csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume(), access_mode=access_mode)
    return csi.VolumeCapability(mount=csi.VolumeCapabilityMountVolume(fs_type=fs_type), access_mode=access_mode)


def create(name: str = "pvc-1", *capabilities: csi.VolumeCapability, **fields: object) -> csi.CreateVolumeRequest:
    values = {"capacity_range": csi.CapacityRange(required_bytes=GIB), **fields}
    return csi.CreateVolumeRequest(
        name=name,
        volume_capabilities=list(capabilities) or [capability()],
        **values,  # type: ignore[arg-type]
    )


async def test_a_volume_is_made_published_unpublished_and_deleted(
    cluster: InfraCluster, service: ControllerService
) -> None:
    volume = (await service.create_volume(create())).volume
    assert volume is not None
    assert (volume.volume_id, volume.capacity_bytes, volume.content_source) == ("pvc-1", GIB, None)
    assert sorted(volume.volume_context) == ["bus", "serial"]
    request = csi.ControllerPublishVolumeRequest(
        volume_id="pvc-1", node_id=node("vm1"), volume_capability=capability(), volume_context=volume.volume_context
    )
    published = await service.controller_publish_volume(request)
    assert published.publish_context == {
        "serial": volume.volume_context["serial"],
        "bus": "scsi",
        "size": str(GIB),
        "content": "none",
    }
    with pytest.raises(FailedPrecondition, match="tenant-a/vm1"):
        await service.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-1"))
    gone = csi.ControllerUnpublishVolumeRequest(volume_id="pvc-1", node_id=node("vm1"))
    await service.controller_unpublish_volume(gone)
    await service.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-1"))
    await service.controller_unpublish_volume(gone)
    await service.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-1"))
    assert cluster.volumes == {}


async def test_serial_and_bus_of_the_tenants_pv_are_not_believed(
    cluster: InfraCluster, service: ControllerService
) -> None:
    made = (await service.create_volume(create())).volume
    assert made is not None
    request = csi.ControllerPublishVolumeRequest(
        volume_id="pvc-1",
        node_id=node("vm1"),
        volume_capability=capability(),
        volume_context={"serial": "of-another-volume", "bus": "virtio"},
    )
    context = (await service.controller_publish_volume(request)).publish_context
    assert context["serial"] == made.volume_context["serial"] == cluster.plugs[0].serial
    assert context["bus"] == "scsi"


WRONG_CREATES = [
    pytest.param(create(""), InvalidArgument, "name", id="no name"),
    pytest.param(create("a\x01"), InvalidArgument, "control characters", id="control characters"),
    pytest.param(csi.CreateVolumeRequest(name="a"), InvalidArgument, "capabilit", id="no capability"),
    pytest.param(create("a", capability(0)), InvalidArgument, "access mode", id="no access mode"),
    pytest.param(create("a", capability(99)), InvalidArgument, "99", id="access mode from the future"),
    pytest.param(
        create("a", capability(), csi.VolumeCapability(mount=csi.VolumeCapabilityMountVolume())),
        InvalidArgument,
        "access mode",
        id="one of several without access mode",
    ),
    pytest.param(
        create("a", capability(Mode.MULTI_NODE_MULTI_WRITER), capability(block=True)),
        InvalidArgument,
        "several nodes",
        id="shared file system first of several",
    ),
    pytest.param(create("a", capability(Mode.MULTI_NODE_READER_ONLY)), InvalidArgument, "READER", id="readers"),
    pytest.param(create("a", capability(fs_type="ntfs")), InvalidArgument, "ntfs", id="file system"),
    pytest.param(
        create("a", capacity_range=csi.CapacityRange(required_bytes=-1)), InvalidArgument, "negative", id="negative"
    ),
    pytest.param(
        create("a", capacity_range=csi.CapacityRange(required_bytes=2 * GIB, limit_bytes=GIB)),
        OutOfRange,
        "at most",
        id="limit below required",
    ),
    pytest.param(create("a", parameters={"colour": "red"}), InvalidArgument, "colour", id="unknown parameter"),
    pytest.param(create("a", parameters={"bus": "x" * 4096}), InvalidArgument, "4096", id="large map"),
    pytest.param(create("a", mutable_parameters={"iops": "1"}), InvalidArgument, "MODIFY", id="mutable parameters"),
    pytest.param(
        create("a", volume_content_source=csi.VolumeContentSource()),
        InvalidArgument,
        "snapshots and clones",
        id="content source",
    ),
    pytest.param(
        create("a", accessibility_requirements=csi.TopologyRequirement()), InvalidArgument, "topology", id="topology"
    ),
    pytest.param(
        create("a", secrets={"key": "x" * 4096}), InvalidArgument, "^secrets has more than 4096", id="large secrets"
    ),
]


@pytest.mark.parametrize(("request_", "kind", "text"), WRONG_CREATES)
async def test_a_create_that_cannot_be_served_makes_nothing(
    cluster: InfraCluster,
    service: ControllerService,
    request_: csi.CreateVolumeRequest,
    kind: type[Exception],
    text: str,
) -> None:
    with pytest.raises(kind, match=text):
        await service.create_volume(request_)
    assert cluster.volumes == {}


async def test_no_capacity_range_means_one_gibibyte(service: ControllerService) -> None:
    volume = (await service.create_volume(create(capacity_range=None))).volume
    assert volume is not None
    assert volume.capacity_bytes == GIB


async def test_small_sizes_are_rounded_up_and_said_so(service: ControllerService) -> None:
    volume = (await service.create_volume(create(capacity_range=csi.CapacityRange(required_bytes=10_000_000)))).volume
    assert volume is not None
    assert volume.capacity_bytes == 10_485_760


async def test_the_sanity_suites_longest_name_is_taken(service: ControllerService) -> None:
    volume = (await service.create_volume(create("Aa" * 64))).volume
    assert volume is not None
    assert len(volume.volume_id) <= 63


async def test_the_same_name_with_another_size_exists_already(service: ControllerService) -> None:
    await service.create_volume(create())
    with pytest.raises(AlreadyExists):
        await service.create_volume(create(capacity_range=csi.CapacityRange(required_bytes=2 * GIB)))


@pytest.mark.parametrize("volume_id", ["fake-vol-id", "Fake/../id", "x" * 100], ids=["legal", "path", "long"])
async def test_deleting_and_unpublishing_what_cannot_exist_succeeds(service: ControllerService, volume_id: str) -> None:
    await service.delete_volume(csi.DeleteVolumeRequest(volume_id=volume_id))
    await service.controller_unpublish_volume(
        csi.ControllerUnpublishVolumeRequest(volume_id=volume_id, node_id=node("vm1"))
    )


async def test_empty_ids_are_invalid(service: ControllerService) -> None:
    with pytest.raises(InvalidArgument, match="volume_id"):
        await service.delete_volume(csi.DeleteVolumeRequest())
    with pytest.raises(InvalidArgument, match="volume_id"):
        await service.controller_unpublish_volume(csi.ControllerUnpublishVolumeRequest())
    with pytest.raises(InvalidArgument, match="volume_id"):
        await service.controller_publish_volume(csi.ControllerPublishVolumeRequest())
    with pytest.raises(InvalidArgument, match="node_id"):
        await service.controller_publish_volume(csi.ControllerPublishVolumeRequest(volume_id="a"))
    with pytest.raises(InvalidArgument, match="capability"):
        await service.controller_publish_volume(csi.ControllerPublishVolumeRequest(volume_id="a", node_id=node("vm1")))
    with pytest.raises(InvalidArgument, match="128"):
        await service.delete_volume(csi.DeleteVolumeRequest(volume_id="x" * 129))


async def test_publishing_an_unknown_volume_is_not_found_whatever_its_id_looks_like(service: ControllerService) -> None:
    for volume_id in ("none-exist-id", "../secrets"):
        with pytest.raises(NotFound, match="volume"):
            await service.controller_publish_volume(
                csi.ControllerPublishVolumeRequest(
                    volume_id=volume_id, node_id=node("vm1"), volume_capability=capability()
                )
            )


async def test_read_only_publishing_is_refused_because_it_is_not_advertised(
    cluster: InfraCluster, service: ControllerService
) -> None:
    await service.create_volume(create())
    request = csi.ControllerPublishVolumeRequest(
        volume_id="pvc-1", node_id=node("vm1"), volume_capability=capability(), readonly=True
    )
    with pytest.raises(InvalidArgument, match="PUBLISH_READONLY"):
        await service.controller_publish_volume(request)
    assert cluster.plugs == []


async def test_unpublish_without_a_node_detaches_from_the_node_that_has_it(
    cluster: InfraCluster, service: ControllerService
) -> None:
    await service.create_volume(create())
    request = csi.ControllerPublishVolumeRequest(volume_id="pvc-1", node_id=node("vm1"), volume_capability=capability())
    await service.controller_publish_volume(request)
    await service.controller_unpublish_volume(csi.ControllerUnpublishVolumeRequest(volume_id="pvc-1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


def validate(*capabilities: csi.VolumeCapability, **fields: object) -> csi.ValidateVolumeCapabilitiesRequest:
    return csi.ValidateVolumeCapabilitiesRequest(
        volume_id="pvc-1",
        volume_capabilities=list(capabilities),
        **fields,  # type: ignore[arg-type]
    )


async def test_block_and_mount_are_confirmed_with_what_was_asked(service: ControllerService) -> None:
    made = (await service.create_volume(create())).volume
    assert made is not None
    asked = validate(
        capability(), capability(block=True), volume_context=made.volume_context, parameters={"bus": "scsi"}
    )
    answer = await service.validate_volume_capabilities(asked)
    assert answer.confirmed is not None
    assert answer.confirmed.volume_capabilities == asked.volume_capabilities
    assert answer.confirmed.volume_context == made.volume_context
    assert answer.confirmed.parameters == {"bus": "scsi"}
    assert answer.message == ""


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(validate(capability(Mode.MULTI_NODE_MULTI_WRITER)), "several nodes", id="shared file system"),
        pytest.param(
            validate(capability(), capability(Mode.MULTI_NODE_MULTI_WRITER, block=True)),
            "was made for SINGLE_NODE_WRITERS",
            id="made for one node",
        ),
        pytest.param(validate(capability(), volume_context={"serial": "x"}), "volume_context", id="context"),
        pytest.param(validate(capability(), parameters={"bus": "virtio"}), "other parameters", id="parameters"),
        pytest.param(validate(capability(), parameters={"colour": "red"}), "colour", id="unknown parameter"),
    ],
)
async def test_what_is_not_served_is_told_and_not_confirmed(
    service: ControllerService, asked: csi.ValidateVolumeCapabilitiesRequest, why: str
) -> None:
    await service.create_volume(create())
    answer = await service.validate_volume_capabilities(asked)
    assert answer.confirmed is None
    assert why in answer.message


async def test_validating_needs_a_volume_and_capabilities(service: ControllerService) -> None:
    with pytest.raises(NotFound):
        await service.validate_volume_capabilities(validate(capability()))
    with pytest.raises(InvalidArgument):
        await service.validate_volume_capabilities(validate())
    with pytest.raises(InvalidArgument):
        await service.validate_volume_capabilities(
            csi.ValidateVolumeCapabilitiesRequest(volume_capabilities=[capability()])
        )


async def test_only_what_is_implemented_is_advertised(service: ControllerService) -> None:
    answer = await service.controller_get_capabilities(csi.ControllerGetCapabilitiesRequest())
    kinds = csi.ControllerServiceCapabilityRpcType
    assert [capability.rpc.type for capability in answer.capabilities if capability.rpc is not None] == [
        kinds.CREATE_DELETE_VOLUME,
        kinds.PUBLISH_UNPUBLISH_VOLUME,
        kinds.EXPAND_VOLUME,
        kinds.SINGLE_NODE_MULTI_WRITER,
    ]
