"""Making volumes: get-or-create, decided by CDI's state, and no final error while something is left."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.infra_volumes import Claim, Condition
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
)
from kubevirt_csi.observe import context
from kubevirt_csi.operations.provisioning import CreateRequest
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import BLOCK, SHARED_BLOCK, WRITER, Driver, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime

GIB = 2**30


def request(
    name: str = "pvc-new",
    *capabilities: Capability,
    required: int = GIB,
    limit: int = 0,
    **parameters: str,
) -> CreateRequest:
    return CreateRequest(
        name=name,
        capabilities=capabilities or (WRITER,),
        capacity=CapacityRange(required=required, limit=limit),
        parameters=parameters,
    )


async def test_a_volume_is_made_under_its_csi_name_and_waited_for(cluster: InfraCluster, driver: Driver) -> None:
    made = await driver.create(request(bus="virtio"))
    volume = cluster.volume("pvc-new")
    assert volume is not None
    assert volume.data_volume is not None
    assert volume.data_volume.phase == "Succeeded"
    assert (made.volume_id, made.capacity_bytes) == ("pvc-new", GIB)
    assert made.volume_context == {"bus": "virtio", "serial": volume.serial}
    assert (volume.bus, volume.content, len(volume.serial)) == (Bus.VIRTIO, Content.NONE, 20)


async def test_a_repetition_gives_the_same_answer_and_makes_nothing(cluster: InfraCluster, driver: Driver) -> None:
    first = await driver.create(request())
    cluster.fail("create", InvalidArgument("a second one"), times=9)
    assert await driver.create(request()) == first


async def test_two_replicas_make_one_volume(cluster: InfraCluster, driver: Driver) -> None:
    other = Driver(cluster, process="replica-2", lag=1.0)
    first, second = await asyncio.gather(driver.create(request()), other.create(request()))
    assert first == second


async def test_a_name_that_is_no_object_name_is_hashed_and_kept_beside(cluster: InfraCluster, driver: Driver) -> None:
    name = "Ünsafe/" + "x" * 100
    made = await driver.create(request(name))
    volume = cluster.volume(made.volume_id)
    assert volume is not None
    assert volume.name == name
    assert made == await driver.create(request(name))


@pytest.mark.parametrize("name", ["", "x" * 129, "a\x00b", "a\x7fb", "ü" * 65], ids=repr)
async def test_a_name_that_the_specification_forbids_is_refused(driver: Driver, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        await driver.create(request(name))


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        pytest.param(
            request("p", Capability(access=Mount(), mode=AccessMode.MULTI_NODE_MULTI_WRITER)),
            InvalidArgument,
            id="shared file system",
        ),
        pytest.param(request("p", WRITER, SHARED_BLOCK, colour="red"), InvalidArgument, id="unknown parameter"),
        pytest.param(request("p", bus="sata"), InvalidArgument, id="bus that cannot be hot-plugged"),
        pytest.param(request("p", required=2 * GIB, limit=GIB), OutOfRange, id="limit below required"),
        pytest.param(request("p", required=1, limit=1), OutOfRange, id="no whole MiB in the range"),
    ],
)
async def test_a_wrong_request_makes_no_object(
    cluster: InfraCluster, driver: Driver, wrong: CreateRequest, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await driver.create(wrong)
    assert list(cluster.volumes) == ["pvc-1"]
    assert not cluster.reads


async def test_an_unknown_parameter_is_refused_with_the_known_ones(driver: Driver) -> None:
    with pytest.raises(InvalidArgument, match=r"infrastorageclass.*infraStorageClassName, bus"):
        await driver.create(request(infrastorageclass="x"))


async def test_the_sidecars_own_parameters_are_passed_over(driver: Driver) -> None:
    parameters = {"csi.storage.k8s.io/pvc/name": "data", "fstype": "xfs", "infraStorageClassName": "local-block"}
    await driver.create(replace(request(), parameters=parameters))
    assert driver.replica.cluster.volumes["pvc-new"].storage_class == "local-block"


@pytest.mark.parametrize("mode", ["SINGLE_NODE_WRITER", "SINGLE_NODE_SINGLE_WRITER", "SINGLE_NODE_MULTI_WRITER"])
async def test_the_single_node_writer_modes_are_one_family(driver: Driver, mode: str) -> None:
    first = await driver.create(request())
    again = Capability(access=Mount(fs_type="ext4"), mode=AccessMode(mode))
    assert await driver.create(request("pvc-new", again)) == first


@pytest.mark.parametrize(
    ("other", "what"),
    [
        pytest.param(request(required=2 * GIB), "capacity", id="larger"),
        pytest.param(request(required=2**23, limit=2**24), "capacity", id="smaller"),
        pytest.param(request(infraStorageClassName="other"), "parameters", id="class"),
        pytest.param(request(bus="virtio"), "parameters", id="bus"),
        pytest.param(request("pvc-new", SHARED_BLOCK), "access", id="access mode"),
    ],
)
async def test_an_existing_volume_of_another_kind_is_named_by_what_differs(
    driver: Driver, other: CreateRequest, what: str
) -> None:
    await driver.create(request())
    with pytest.raises(AlreadyExists, match=what):
        await driver.create(other)


async def test_an_existing_larger_volume_within_the_range_is_the_volume(driver: Driver) -> None:
    await driver.create(request(required=2 * GIB))
    assert (await driver.create(request(required=GIB))).capacity_bytes == 2 * GIB


async def test_a_volume_of_the_predecessor_is_compared_by_what_it_tells(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-old", serial=None, bus=None, content=None)
    made = await driver.create(request("pvc-old", infraStorageClassName="local-block"))
    assert made.volume_context == {"bus": "scsi", "serial": "dv-pvc-old"}


async def test_the_real_capacity_of_a_block_claim_is_reported(cluster: InfraCluster, driver: Driver) -> None:
    volume = cluster.have_volume("pvc-1")
    assert volume.claim is not None
    volume.claim = replace(volume.claim, volume_mode="Block", capacity_bytes=GIB + 2**22)
    cluster.touch("pvc-1")
    assert (await driver.create(request("pvc-1"))).capacity_bytes == GIB + 2**22


async def test_a_claim_that_comes_out_larger_than_the_limit_is_removed_again(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.extra_bytes = 2**22
    with pytest.raises(OutOfRange, match="limit_bytes"):
        await driver.create(request(limit=GIB + 2**20))
    assert "pvc-new" not in cluster.volumes


async def test_the_capacity_of_a_filesystem_claim_is_not_promised_to_the_tenant(
    cluster: InfraCluster, driver: Driver
) -> None:
    volume = cluster.have_volume("pvc-1")
    assert volume.claim is not None
    volume.claim = replace(volume.claim, volume_mode="Filesystem", size_bytes=2 * GIB, capacity_bytes=2 * GIB)
    cluster.touch("pvc-1")
    assert (await driver.create(request("pvc-1"))).capacity_bytes == GIB


async def test_a_filesystem_class_gives_what_was_asked_for_and_no_less(cluster: InfraCluster, driver: Driver) -> None:
    cluster.behaviour["file"] = "Filesystem"
    made = await driver.create(request(infraStorageClassName="file", limit=GIB))
    claim = cluster.volumes["pvc-new"].claim
    assert claim is not None
    assert claim.size_bytes > GIB
    assert made.capacity_bytes == GIB


async def test_a_filesystem_claim_without_data_volume_has_less_than_its_size(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_volume("pvc-1", data_volume=False, mode="Filesystem")
    made = await driver.create(request("pvc-1", required=900 * 2**20))
    assert 900 * 2**20 <= made.capacity_bytes <= GIB


@pytest.mark.parametrize("phase", ["WaitForFirstConsumer", "PendingPopulation"])
async def test_a_class_that_binds_on_first_consumer_is_not_waited_for(
    cluster: InfraCluster, driver: Driver, phase: str
) -> None:
    cluster.behaviour["wffc"] = phase
    started = now()
    await driver.create(request(infraStorageClassName="wffc"))
    assert now() - started < 1


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ErrClaimNotValid", InvalidArgument),
        ("ErrExceededQuota", ResourceExhausted),
        ("ErrResourceExists", AlreadyExists),
    ],
)
async def test_a_refusal_of_cdi_is_told_in_its_words_and_nothing_is_left(
    cluster: InfraCluster, driver: Driver, reason: str, kind: type[Exception]
) -> None:
    cluster.behaviour["bad"] = reason
    place = "pvc-new .* infra cluster, namespace tenant-a, with storage class bad"
    with pytest.raises(kind, match=f"{place}.*text of {reason}"):
        await driver.create(request(infraStorageClassName="bad"))
    assert "pvc-new" not in cluster.volumes
    cluster.behaviour.clear()
    await driver.create(request(infraStorageClassName="bad"))


async def test_a_refusal_that_only_an_old_cache_knows_discards_nothing(cluster: InfraCluster) -> None:
    """Another replica may have given the volume out since."""
    late = Driver(cluster, lag=20.0)
    cluster.have_volume("pvc-1", phase="Pending")
    cluster.condition("pvc-1", Condition(type="Bound", status="False", reason="ErrExceededQuota", message="q"))
    await asyncio.sleep(21)
    cluster.condition("pvc-1")
    cluster.set_phase("pvc-1", "Succeeded")
    with pytest.raises(Aborted, match="changed while"):
        await late.create(request("pvc-1"))
    assert cluster.volumes["pvc-1"].data_volume is not None


async def test_a_claim_of_an_older_volume_that_is_still_going_is_waited_for(
    cluster: InfraCluster, driver: Driver
) -> None:
    """CDI says ErrResourceMarkedForDeletion and makes the new claim when the old one has gone."""
    cluster.behaviour["slow"] = "Pending"
    task = asyncio.create_task(driver.create(request(infraStorageClassName="slow")))
    await asyncio.sleep(1)
    volume = cluster.volumes["pvc-new"]
    old = Claim(uid="old", resource_version="1", phase="Bound", deleting=True)
    volume.claim = old
    marked = Condition(type="Bound", status="False", reason="ErrResourceMarkedForDeletion", message="marked")
    cluster.condition("pvc-new", marked)
    await asyncio.sleep(30)
    assert not task.done()
    volume.claim = replace(old, uid="new", deleting=False, volume_mode="Block", size_bytes=GIB)
    cluster.condition("pvc-new")
    cluster.set_phase("pvc-new", "Succeeded")
    assert (await task).volume_id == "pvc-new"


async def test_a_quota_that_is_being_counted_makes_a_conflict_that_is_outlasted(
    cluster: InfraCluster, driver: Driver
) -> None:
    conflict = Stale('Operation cannot be fulfilled on resourcequotas "q": the object has been modified')
    cluster.fail("create", conflict, times=3)
    assert (await driver.create(request())).volume_id == "pvc-new"
    cluster.fail("create", conflict, times=9)
    with pytest.raises(Aborted, match="resourcequotas"):
        await driver.create(request("pvc-other"))


async def test_a_quota_on_the_number_of_objects_is_resource_exhausted(cluster: InfraCluster, driver: Driver) -> None:
    cluster.behaviour["bad"] = "CountQuota"
    with pytest.raises(ResourceExhausted, match="exceeded quota"):
        await driver.create(request(infraStorageClassName="bad"))


async def test_a_population_that_failed_is_cleaned_up_and_final(cluster: InfraCluster, driver: Driver) -> None:
    cluster.behaviour["bad"] = "Failed"
    with pytest.raises(Internal, match="phase Failed"):
        await driver.create(request(infraStorageClassName="bad"))
    assert "pvc-new" not in cluster.volumes


async def test_a_refusal_is_not_final_while_something_is_left(cluster: InfraCluster, driver: Driver) -> None:
    cluster.behaviour["bad"] = "Failed"
    cluster.timing.gc = 500.0
    with pytest.raises(Aborted, match="being removed again"):
        await driver.create(request(infraStorageClassName="bad"))


async def test_a_volume_that_a_vm_has_is_not_cleaned_up_after_a_refusal(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1")
    cluster.set_phase("pvc-1", "Failed")
    with pytest.raises(FailedPrecondition, match="tenant-a/vm1"):
        await driver.create(request("pvc-1"))
    assert "pvc-1" in cluster.volumes


async def test_an_undecided_volume_is_told_with_the_texts_of_its_conditions(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_volume("pvc-1", phase="Pending")
    text = "target PVC pvc-1 Pending and [prime-1] : no space in pool"
    cluster.condition("pvc-1", Condition(type="Bound", status="False", reason="Pending", message=text))
    work = context.Work()
    context.begin(work)
    task = asyncio.create_task(driver.create(request("pvc-1")))
    await asyncio.sleep(1)
    assert "no space in pool" in work.waiting_for
    with pytest.raises(DeadlineExceeded, match="no space in pool"):
        await task
    assert "pvc-1" in cluster.volumes


async def test_a_name_that_somebody_else_has_is_taken(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-9", ours=False)
    with pytest.raises(AlreadyExists, match="not this tenant's"):
        await driver.create(request("pvc-9"))


async def test_a_volume_that_is_being_deleted_is_not_given_out(cluster: InfraCluster, driver: Driver) -> None:
    volume = cluster.volumes["pvc-1"]
    assert volume.data_volume is not None
    volume.data_volume = replace(volume.data_volume, deleting=True)
    with pytest.raises(Aborted, match="still being deleted"):
        await driver.create(request("pvc-1"))


async def test_a_cache_that_remembers_an_older_volume_of_the_name_does_not_decide(cluster: InfraCluster) -> None:
    late = Driver(cluster, lag=30.0)
    await asyncio.sleep(31)
    del cluster.volumes["pvc-1"]
    cluster.behaviour["slow"] = "Pending"
    with pytest.raises(DeadlineExceeded):
        await late.create(request("pvc-1", infraStorageClassName="slow"))


async def test_an_unanswered_create_is_not_final_and_the_next_call_goes_on(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.fail("create", Unavailable("no answer"), carried_out_after=1.0)
    with pytest.raises(Unavailable):
        await driver.create(request())
    await asyncio.sleep(2)
    await driver.create(request())


async def test_raw_block_is_made_as_well(driver: Driver) -> None:
    await driver.create(request("pvc-b", BLOCK))
    await driver.create(request("pvc-s", Capability(access=Block(), mode=AccessMode.MULTI_NODE_MULTI_WRITER)))


async def test_mkfs_options_are_kept_with_the_volume_and_told_in_its_context(driver: Driver) -> None:
    made = await driver.create(request(mkfsOptions="-m 5  -i 8192"))
    assert made.volume_context["mkfsOptions"] == "-m 5 -i 8192"
    assert await driver.create(request(mkfsOptions=" -m 5 -i 8192")) == made
    with pytest.raises(AlreadyExists, match="another parameters"):
        await driver.create(request(mkfsOptions="-m 6"))


@pytest.mark.parametrize(
    ("fs_type", "wanted", "refusal"),
    [
        ("ext4", request(mkfsOptions="-O orphan_file"), InvalidArgument("-O is not allowed; for ext4 there are")),
        ("xfs", request(mkfsOptions="-m 5"), InvalidArgument("-m is not allowed; for xfs there are")),
        ("xfs", request(required=100 * 2**20), OutOfRange("at least 314572800 bytes")),
        ("btrfs", request(required=100 * 2**20), OutOfRange("at least 115343360 bytes")),
        ("", request(required=4 * 2**20), OutOfRange("too small for ext4, which needs at least 8388608 bytes")),
        ("ntfs", request(), InvalidArgument("'ntfs' is not supported; use one of ext4, xfs, btrfs")),
    ],
)
async def test_a_file_system_that_could_not_be_made_later_is_refused_before_anything_is_made(
    cluster: InfraCluster, driver: Driver, fs_type: str, wanted: CreateRequest, refusal: Exception
) -> None:
    capability = Capability(access=Mount(fs_type=fs_type), mode=AccessMode.SINGLE_NODE_WRITER)
    with pytest.raises(type(refusal), match=re.escape(str(refusal))):
        await driver.create(replace(wanted, capabilities=(capability,)))
    assert "pvc-new" not in cluster.volumes
