"""Detaching a volume: gone from VM spec, VMI spec and VMI status, in whatever phase, and only then reported."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kubevirt_csi.domain.infra_volumes import ATTACHMENTS, CONTENT
from kubevirt_csi.domain.machines import VolumeStatus
from kubevirt_csi.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import SHARED_BLOCK, WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime


def verbs(cluster: InfraCluster) -> list[tuple[str, str, str]]:
    return [(verb, vm, volume) for _, verb, vm, volume in cluster.journal]


def notes(cluster: InfraCluster) -> dict[str, str]:
    return cluster.volumes["pvc-1"].claim_annotations


async def test_a_detached_volume_is_nowhere_its_entry_is_gone_and_its_content_counts_as_used(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert notes(cluster)[CONTENT] == "none"
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")
    assert ATTACHMENTS not in notes(cluster)
    assert notes(cluster)[CONTENT] == "used"


async def test_the_entry_outlives_the_disk_in_the_guest(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    detach = asyncio.create_task(driver.unpublish("pvc-1", node("vm1")))
    while not detach.done():
        if cluster.machines["vm1"].holds("pvc-1"):
            assert ATTACHMENTS in notes(cluster)
        await asyncio.sleep(0.05)
    await detach


@pytest.mark.parametrize("phase", ["none", "Pending", "Bound", "AttachedToNode", "MountedToPod", "Ready"])
async def test_a_half_finished_attach_is_taken_out_in_whatever_phase(
    cluster: InfraCluster, driver: Driver, phase: str
) -> None:
    cluster.have_attached("vm1", "pvc-1", phase=phase, target="")
    if phase == "none":
        cluster.change_vm("vm1", statuses={}, vmi_volumes={})
    await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == [("remove", "vm1", "pvc-1")]
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_a_shared_block_volume_is_detached_from_the_named_node_only(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.exclusive.clear()
    for vm in ("vm1", "vm2"):
        await driver.publish("pvc-1", node(vm), SHARED_BLOCK)
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")
    assert cluster.machines["vm2"].attached("pvc-1")


async def test_no_node_means_every_node(cluster: InfraCluster, driver: Driver) -> None:
    cluster.exclusive.clear()
    for vm in ("vm1", "vm2"):
        await driver.publish("pvc-1", node(vm), SHARED_BLOCK)
    await driver.unpublish("pvc-1", "")
    assert not any(machine.holds("pvc-1") for machine in cluster.machines.values())
    assert ATTACHMENTS not in notes(cluster)


async def test_a_second_detach_succeeds_without_a_write(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    await driver.unpublish("pvc-1", node("vm1"))
    before = list(cluster.journal)
    await driver.unpublish("pvc-1", node("vm1"))
    assert cluster.journal == before


async def test_a_volume_that_never_was_attached_is_detached(cluster: InfraCluster, driver: Driver) -> None:
    await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == []


async def test_vm_and_instance_gone_means_detached_and_the_entry_goes(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    del cluster.machines["vm1"]
    cluster.touch("vm1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert ATTACHMENTS not in notes(cluster)


async def test_a_vm_that_cannot_be_read_proves_nothing(cluster: InfraCluster, driver: Driver) -> None:
    del cluster.machines["vm1"]
    cluster.fail("get_machine", Unavailable("timed out"))
    with pytest.raises(Unavailable):
        await driver.unpublish("pvc-1", node("vm1"))


async def test_a_vm_that_is_gone_while_its_instance_has_the_disk_is_not_detached_before_the_instance_lets_go(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.remove_vm("vm1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster)[1:] == [("remove from instance", "vm1", "pvc-1")]
    machine = cluster.machines["vm1"]
    assert machine.instance is not None
    assert "pvc-1" not in machine.instance.statuses


async def test_an_instance_that_may_not_let_go_is_told_once_and_succeeds_when_it_has_ended(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.remove_vm("vm1")
    cluster.fail("remove_volume_from_instance", FailedPrecondition("VMI ns/vm1 is owned by a VM"), times=9)
    started = now()
    with pytest.raises(Unavailable, match=r"HotplugVolumes.*owned by a VM"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert len(cluster.faults["remove_volume_from_instance"]) == 8
    assert now() - started < 5
    cluster.remove_instance("vm1")
    await driver.unpublish("pvc-1", node("vm1"))


async def test_a_missing_permission_is_told_after_one_try(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.remove_vm("vm1")
    cluster.fail("remove_volume_from_instance", PermissionDenied("cannot update removevolume"), times=9)
    with pytest.raises(PermissionDenied, match="removevolume"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert len(cluster.faults["remove_volume_from_instance"]) == 8


async def test_does_not_exist_is_success_after_looking_again(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1")
    cluster.fail("remove_volume", Stale("does not exist"), carried_out_after=0.0)
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_a_guest_that_does_not_let_go_is_told_with_the_phase(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.timing.attach = lambda: 10_000.0
    with pytest.raises(DeadlineExceeded, match=r"VMI status \(Ready"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert ATTACHMENTS in notes(cluster)


async def test_a_cache_that_has_not_heard_of_the_attach_does_not_make_it_gone(cluster: InfraCluster) -> None:
    late, prompt = Driver(cluster, lag=60.0), Driver(cluster, process="replica-2")
    await prompt.publish("pvc-1", node("vm1"), WRITER)
    await asyncio.sleep(45)
    await late.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_a_stopped_vm_is_freed_of_the_disk_in_its_spec(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.remove_instance("vm1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert "pvc-1" not in cluster.machines["vm1"].volumes


async def test_an_instance_that_has_ended_holds_nothing(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.change_vm("vm1", phase="Succeeded")
    await driver.unpublish("pvc-1", node("vm1"))
    await driver.publish("pvc-1", node("vm2"), WRITER)
    assert cluster.machines["vm2"].attached("pvc-1")


async def test_a_migration_puts_the_detach_off_without_a_write(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.change_vm("vm1", migrating=True)
    with pytest.raises(Unavailable, match="migration in progress"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == [("add", "vm1", "pvc-1")]
    cluster.change_vm("vm1", migrating=False)
    await driver.unpublish("pvc-1", node("vm1"))


async def test_a_volume_without_a_data_volume_is_detached_all_the_same(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.volumes["pvc-1"].data_volume = None
    cluster.touch("pvc-1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_a_volume_whose_objects_are_all_gone_is_still_taken_out_of_the_vm(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    del cluster.volumes["pvc-1"]
    cluster.touch("pvc-1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_another_tenants_volume_is_not_taken_out_of_a_vm(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-9", ours=False)
    cluster.have_attached("vm1", "pvc-9")
    with pytest.raises(NotFound, match="volume pvc-9"):
        await driver.unpublish("pvc-9", node("vm1"))
    assert verbs(cluster) == []


async def test_a_vm_without_the_tenants_labels_is_not_touched(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1")
    cluster.foreign_machines.add("vm1")
    with pytest.raises(NotFound, match="node tenant-a/vm1"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == []


async def test_a_node_of_another_namespace_cannot_have_the_claim_so_it_is_detached(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_attached("vm1", "pvc-1")
    await driver.unpublish("pvc-1", "other/vm1")
    assert verbs(cluster) == []


async def test_a_malformed_node_id_is_an_invalid_argument(driver: Driver) -> None:
    with pytest.raises(InvalidArgument):
        await driver.unpublish("pvc-1", "vm1")


async def test_a_permanent_disk_is_not_taken_out(cluster: InfraCluster, driver: Driver) -> None:
    cluster.change_vm("vm1", volumes={"pvc-1": cluster.plugged("pvc-1", hotpluggable=False)})
    with pytest.raises(FailedPrecondition, match="by hand"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == []


async def test_an_attach_of_another_process_that_may_still_arrive_keeps_the_detach_open(
    cluster: InfraCluster, driver: Driver
) -> None:
    other = Driver(cluster, process="replica-2")
    cluster.fail("add_volume", Unavailable("no answer"), carried_out_after=25.0)
    with pytest.raises(Unavailable):
        await other.publish("pvc-1", node("vm1"), WRITER)
    with pytest.raises(Aborted, match="another process"):
        await driver.unpublish("pvc-1", node("vm1"))
    await asyncio.sleep(45)
    await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == [("add", "vm1", "pvc-1"), ("remove", "vm1", "pvc-1")]
    assert ATTACHMENTS not in notes(cluster)


async def test_an_entry_is_not_forgotten_while_the_vm_has_the_disk_again(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    with pytest.raises(Aborted, match="attached to node tenant-a/vm1 again"):
        await driver.holding.forget("pvc-1", "vm1", was_held=False)
    assert ATTACHMENTS in notes(cluster)


async def test_a_hand_made_status_with_the_claim_under_another_name_is_not_called_detached(
    cluster: InfraCluster, driver: Driver
) -> None:
    status = VolumeStatus(name="data", phase="Ready", target="sdb", claim="pvc-1", hotplug=True)
    cluster.change_vm("vm1", statuses={"data": status})
    with pytest.raises(FailedPrecondition, match="under the name data"):
        await driver.unpublish("pvc-1", node("vm1"))


async def test_a_rebuilt_vm_of_the_same_name_has_nothing_of_the_old_one(cluster: InfraCluster, driver: Driver) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    del cluster.machines["vm1"]
    cluster.have_vm("vm1", uid="another")
    await driver.publish("pvc-1", node("vm1"), WRITER)
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert volume.attachments["vm1"].vm_uid == "another"
    assert notes(cluster)[CONTENT] == "used"


async def test_a_bare_claim_that_an_entry_names_is_detached(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-1", data_volume=False)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    await driver.unpublish("pvc-1", node("vm1"))
    assert ATTACHMENTS not in notes(cluster)


async def test_fifty_moves_between_two_vms_with_late_and_uneven_status_end_clean(cluster: InfraCluster) -> None:
    seconds = iter([step * 37 % 50 / 10 for step in range(10_000)])
    cluster.timing.attach = lambda: next(seconds)
    driver = Driver(cluster, lag=2.0)
    for turn in range(50):
        vm = node("vm1" if turn % 2 else "vm2")
        await driver.publish("pvc-1", vm, WRITER)
        await driver.unpublish("pvc-1", vm)
    assert not any(machine.holds("pvc-1") for machine in cluster.machines.values())
    assert len(cluster.journal) == 100


async def test_a_volume_that_the_deleted_claim_of_a_vm_left_over_is_free_for_the_next(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_attached("vm1", "pvc-1")
    instance = cluster.machines["vm1"].instance
    assert instance is not None
    cluster.change_vm("vm1", instance=replace(instance, phase="Failed"), volumes={})
    await driver.unpublish("pvc-1", node("vm1"))
    await driver.publish("pvc-1", node("vm2"), WRITER)
