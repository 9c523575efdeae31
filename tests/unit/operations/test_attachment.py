"""Attaching a volume: done only when the guest has it, refused where it cannot be, decided by state, never by luck."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction

import pytest

from kubevirt_csi.domain.infra_volumes import ATTACHMENTS, Condition
from kubevirt_csi.domain.machines import VolumeStatus
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from tests.fakes.driver import SHARED_BLOCK, WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime


def verbs(cluster: InfraCluster) -> list[tuple[str, str, str]]:
    return [(verb, vm, volume) for _, verb, vm, volume in cluster.journal]


async def test_an_attached_disk_is_reported_with_serial_bus_size_and_content(
    cluster: InfraCluster, driver: Driver
) -> None:
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert context.to_map() == {
        "serial": "0123456789abcdef0123",
        "bus": "scsi",
        "size": str(2**30),
        "content": "none",
    }
    assert cluster.machines["vm1"].attached("pvc-1")
    assert verbs(cluster) == [("add", "vm1", "pvc-1")]


async def test_the_entry_is_written_before_the_disk_is_plugged(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("add_volume", Unavailable("no answer"))
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert [(e.node_id, e.vm_uid) for e in volume.attachments.values()] == [(node("vm1"), cluster.machines["vm1"].uid)]


async def test_a_disk_in_vm_spec_alone_is_not_attached(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1", phase="Pending", target="")
    status = VolumeStatus(name="pvc-1", phase="Pending", reason="PVCNotReady", message="claim is pending", hotplug=True)
    cluster.change_vm("vm1", statuses={"pvc-1": status})
    with pytest.raises(DeadlineExceeded, match="claim is pending"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_a_disk_that_is_ready_without_a_target_is_not_attached(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1", target="")
    with pytest.raises(DeadlineExceeded):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_the_text_at_the_deadline_carries_the_vms_own_failure(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1", phase="Bound", target="")
    cluster.change_vm("vm1", failure="Error encountered while handling declarative hotplug volumes: bus")
    with pytest.raises(DeadlineExceeded, match=r"Bound.*declarative hotplug volumes"):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_failed_phase_ends_the_wait_at_once(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1", phase="HotplugVolumeFailed", target="")
    started = now()
    with pytest.raises(Unavailable, match="HotplugVolumeFailed"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert now() - started < 5


async def test_after_a_restart_of_the_vm_the_disk_is_judged_on_the_new_instance(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.remove_instance("vm1")
    cluster.start("vm1")
    started = now()
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert now() - started > 5
    assert verbs(cluster) == [("add", "vm1", "pvc-1")]


async def test_an_attached_volume_is_published_again_without_a_write(cluster: InfraCluster, driver: Driver) -> None:
    first = await driver.publish("pvc-1", node("vm1"), WRITER)
    before = cluster.volume("pvc-1")
    assert await driver.publish("pvc-1", node("vm1"), WRITER) == first
    assert cluster.volume("pvc-1") == before
    assert len(cluster.journal) == 1


async def test_a_lagging_cache_does_not_make_a_detached_disk_attached(cluster: InfraCluster) -> None:
    late, prompt = Driver(cluster, lag=60.0), Driver(cluster, process="replica-2")
    cluster.have_attached("vm1", "pvc-1")
    await asyncio.sleep(61)
    await prompt.unpublish("pvc-1", node("vm1"))
    cluster.stuck.add("pvc-1")
    with pytest.raises(DeadlineExceeded):
        await late.publish("pvc-1", node("vm1"), WRITER)


@pytest.mark.parametrize(
    "wrong",
    ["vm1", "a/b/c", "", "tenant-a/", "/vm1", "tenant-a/VM1", "tenant-a/../x"],
    ids=lambda text: text or "empty",
)
async def test_a_malformed_node_id_is_that_of_no_node(cluster: InfraCluster, driver: Driver, wrong: str) -> None:
    with pytest.raises(NotFound, match="is not of the form namespace/vm, so there is no such node"):
        await driver.publish("pvc-1", wrong, WRITER)
    assert not cluster.reads


async def test_a_node_of_another_namespace_is_not_found_although_its_vm_name_exists_here(
    cluster: InfraCluster, driver: Driver
) -> None:
    with pytest.raises(NotFound, match="other/vm1"):
        await driver.publish("pvc-1", "other/vm1", WRITER)
    assert verbs(cluster) == []


async def test_an_alias_of_the_namespace_is_this_namespace_and_its_spelling_is_kept(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", "old-name/vm1", WRITER)
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert volume.attachments["vm1"].node_id == "old-name/vm1"


async def test_unknown_volume_and_unknown_node_are_told_apart(driver: Driver) -> None:
    with pytest.raises(NotFound, match="volume pvc-9"):
        await driver.publish("pvc-9", node("vm1"), WRITER)
    with pytest.raises(NotFound, match="node tenant-a/vm9"):
        await driver.publish("pvc-1", node("vm9"), WRITER)


async def test_another_tenants_volume_does_not_exist(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-9", ours=False)
    with pytest.raises(NotFound, match="volume pvc-9"):
        await driver.publish("pvc-9", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_a_vm_without_the_tenants_labels_is_no_node(cluster: InfraCluster, driver: Driver) -> None:
    cluster.foreign_machines.add("vm1")
    with pytest.raises(NotFound, match="node tenant-a/vm1"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


@pytest.mark.parametrize("place", ["running", "stopped", "other name"])
async def test_a_volume_that_another_vm_has_is_refused_with_the_nodes_name(
    cluster: InfraCluster, driver: Driver, place: str
) -> None:
    match place:
        case "running":
            cluster.have_attached("vm2", "pvc-1")
        case "stopped":
            cluster.remove_instance("vm2")
            cluster.change_vm("vm2", volumes={"pvc-1": cluster.plugged("pvc-1")})
        case _:
            cluster.change_vm("vm2", volumes={"data": cluster.plugged("data", claim="pvc-1")})
    with pytest.raises(FailedPrecondition, match="tenant-a/vm2"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_a_list_that_fails_opens_nothing(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("holders", Unavailable("the API is away"))
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_a_holder_that_only_a_stale_cache_knows_is_no_holder(cluster: InfraCluster) -> None:
    late = Driver(cluster, lag=30.0)
    cluster.have_attached("vm2", "pvc-1")
    await asyncio.sleep(31)
    cluster.change_vm("vm2", volumes={}, vmi_volumes={}, statuses={})
    await late.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.machines["vm1"].attached("pvc-1")


async def test_raw_block_for_several_nodes_is_plugged_shareable_into_both(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_volume("pvc-1", digest="access=MULTI_NODE_MULTI_WRITER")
    cluster.exclusive.clear()
    await driver.publish("pvc-1", node("vm1"), SHARED_BLOCK)
    await driver.publish("pvc-1", node("vm2"), SHARED_BLOCK)
    assert [plug.shared for plug in cluster.plugs] == [True, True]
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert sorted(volume.attachments) == ["vm1", "vm2"]


async def test_a_volume_made_for_one_node_is_not_shared_because_a_pv_says_so(driver: Driver) -> None:
    driver.replica.cluster.have_volume("pvc-1", digest="access=SINGLE_NODE_WRITERS")
    with pytest.raises(InvalidArgument, match="one node at a time"):
        await driver.publish("pvc-1", node("vm1"), SHARED_BLOCK)


async def test_a_migration_is_waited_out_by_the_caller_and_nothing_is_written(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.change_vm("vm1", migrating=True)
    with pytest.raises(Unavailable, match="migration in progress"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []
    assert ATTACHMENTS not in cluster.volumes["pvc-1"].claim_annotations
    cluster.change_vm("vm1", migrating=False)
    await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_disk_that_is_attached_stays_so_in_a_migration(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.change_vm("vm1", migrating=True)
    await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_stopped_vm_takes_no_disk_and_nothing_is_left_behind(cluster: InfraCluster, driver: Driver) -> None:
    cluster.remove_instance("vm1")
    with pytest.raises(FailedPrecondition, match="does not run"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert ATTACHMENTS not in cluster.volumes["pvc-1"].claim_annotations
    assert verbs(cluster) == []


async def test_serial_and_bus_come_from_the_infra_objects(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-1", serial="ffff0000ffff0000ffff", bus=Bus.VIRTIO)
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert (context.serial, context.bus) == ("ffff0000ffff0000ffff", Bus.VIRTIO)
    assert [(plug.serial, plug.bus) for plug in cluster.plugs] == [("ffff0000ffff0000ffff", Bus.VIRTIO)]


async def test_a_disk_that_the_predecessor_attached_is_told_as_its_entry_in_the_vm_says(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_volume("pvc-1", serial=None, bus=None, content=None)
    cluster.have_attached("vm1", "pvc-1")
    disk = replace(cluster.plugged("pvc-1"), serial="dv-pvc-1", bus="virtio")
    cluster.change_vm("vm1", volumes={"pvc-1": disk})
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert (context.serial, context.bus, context.content) == ("dv-pvc-1", Bus.VIRTIO, Content.USED)
    assert verbs(cluster) == []


async def test_a_permanent_disk_of_the_same_name_is_no_attachment(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1")
    cluster.change_vm("vm1", volumes={"pvc-1": cluster.plugged("pvc-1", claim="root", hotpluggable=False)})
    with pytest.raises(FailedPrecondition, match="permanent disk"):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_volume_that_is_still_filled_is_waited_for_before_it_is_plugged(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.set_phase("pvc-1", "ImportInProgress")
    cluster.later(20.0, lambda: cluster.set_phase("pvc-1", "Succeeded"))
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.journal[0][0] >= 20.0


async def test_a_volume_that_is_never_filled_is_told_with_cdis_words(cluster: InfraCluster, driver: Driver) -> None:
    cluster.set_phase("pvc-1", "Pending")
    cluster.condition("pvc-1", Condition(type="Bound", status="False", reason="Pending", message="no space in pool"))
    with pytest.raises(DeadlineExceeded, match="no space in pool"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


@pytest.mark.parametrize("phase", ["WaitForFirstConsumer", "PendingPopulation"])
async def test_a_volume_that_waits_for_its_consumer_is_plugged_and_then_filled(
    cluster: InfraCluster, driver: Driver, phase: str
) -> None:
    cluster.set_phase("pvc-1", phase)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.machines["vm1"].attached("pvc-1")


async def test_a_bare_claim_is_plugged_as_a_claim(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-1", data_volume=False)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert [plug.bare_claim for plug in cluster.plugs] == [True]


@pytest.mark.parametrize(("overhead", "mebibytes"), [(None, 962), (Fraction(1, 10), 921), (Fraction(0), 1024)])
async def test_the_size_of_a_bare_filesystem_claim_is_that_of_its_image(
    cluster: InfraCluster, driver: Driver, overhead: Fraction | None, mebibytes: int
) -> None:
    """The node makes no file system on a disk that is smaller than it was told."""
    volume = cluster.have_volume("pvc-1", data_volume=False, mode="Filesystem")
    assert volume.claim is not None
    volume.claim = replace(volume.claim, size_bytes=2**30)
    cluster.have_attached("vm1", "pvc-1")
    status = VolumeStatus(name="pvc-1", phase="Ready", target="sda", hotplug=True, overhead=overhead)
    cluster.change_vm("vm1", statuses={"pvc-1": status})
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert context.size_bytes == mebibytes * 2**20


async def test_the_size_of_a_filesystem_volume_is_what_was_asked_for(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-1", mode="Filesystem")
    assert (await driver.publish("pvc-1", node("vm1"), WRITER)).size_bytes == 2**30


async def test_an_unbound_bare_claim_is_plugged_and_then_bound(cluster: InfraCluster, driver: Driver) -> None:
    volume = cluster.have_volume("pvc-1", data_volume=False)
    assert volume.claim is not None
    volume.claim = replace(volume.claim, phase="Pending")
    cluster.touch("pvc-1")
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.volumes["pvc-1"].claim.phase == "Bound"  # type: ignore[union-attr]


async def test_what_keeps_a_volume_from_being_filled_in_use_is_told_in_cdis_words(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.set_phase("pvc-1", "PendingPopulation")
    text = "exceeded quota: q, requested: requests.storage=1Gi"
    cluster.condition("pvc-1", Condition(type="Running", status="False", reason="ErrExceededQuota", message=text))
    cluster.timing.populate = 1000.0
    with pytest.raises(DeadlineExceeded, match=f"ErrExceededQuota: {text}"):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_volume_that_cdi_has_given_up_is_refused_in_cdis_words(cluster: InfraCluster, driver: Driver) -> None:
    cluster.condition("pvc-1", Condition(type="Bound", status="False", reason="ClaimLost", message="Claim Lost"))
    cluster.set_phase("pvc-1", "Failed")
    with pytest.raises(FailedPrecondition, match=r"phase Failed.*Claim Lost"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_a_volume_that_is_being_deleted_is_not_attached(cluster: InfraCluster, driver: Driver) -> None:
    volume = cluster.volumes["pvc-1"]
    assert volume.claim is not None
    volume.claim = replace(volume.claim, deleting=True)
    cluster.touch("pvc-1")
    with pytest.raises(FailedPrecondition, match="being deleted"):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_disk_on_its_way_out_is_not_taken_for_attached(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.remove_volume("vm1", "pvc-1")
    with pytest.raises(Unavailable, match="still detaching"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
