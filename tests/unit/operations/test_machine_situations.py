"""VMs in odd states: only the instance has the disk, deleted, started without hot-plug, restarting."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kubevirt_csi.domain.infra_volumes import ATTACHMENTS
from kubevirt_csi.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from kubevirt_csi.observe import context
from tests.fakes.driver import WRITER, Driver, node
from tests.fakes.infra_cluster import InfraCluster
from tests.fakes.infra_machines import Mode

pytestmark = pytest.mark.looptime


def verbs(cluster: InfraCluster) -> list[str]:
    return [verb for _, verb, _, _ in cluster.journal]


async def test_a_disk_that_only_the_instance_has_is_taken_out_of_the_instance(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.mode = Mode.LEGACY
    cluster.have_in_instance_alone("vm1", "pvc-1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == ["remove from instance"]
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_what_the_syncer_takes_out_by_itself_the_instance_is_not_asked_for(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_in_instance_alone("vm1", "pvc-1")
    cluster.later(2.0, lambda: cluster.sync("vm1"))
    cluster.fail("remove_volume_from_instance", FailedPrecondition("VMI tenant-a/vm1 is owned by a VM"))
    await driver.unpublish("pvc-1", node("vm1"))
    assert len(cluster.faults["remove_volume_from_instance"]) == 1


@pytest.mark.parametrize(
    ("mode", "words"),
    [(Mode.OFF, "Enable DeclarativeHotplugVolumes or HotplugVolumes"), (Mode.DECLARATIVE, "is owned by a VM")],
)
async def test_a_disk_that_kubevirt_leaves_in_the_instance_is_told_with_what_an_operator_can_do(
    cluster: InfraCluster, driver: Driver, mode: Mode, words: str
) -> None:
    cluster.mode = mode
    cluster.change_vm("vm1", migrates_volumes=True)
    cluster.have_in_instance_alone("vm1", "pvc-1")
    with pytest.raises(DeadlineExceeded, match=f"in its VMI alone.*{words}.*restart the VM"):
        await driver.unpublish("pvc-1", node("vm1"))
    cluster.remove_instance("vm1")
    cluster.start("vm1")
    await driver.unpublish("pvc-1", node("vm1"))


async def test_a_disk_that_only_the_instance_has_is_not_plugged_beside_itself(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.mode = Mode.LEGACY
    cluster.have_in_instance_alone("vm1", "pvc-1")
    with pytest.raises(Unavailable, match="plugged it into the VMI alone"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_an_instance_without_vm_that_does_not_run_is_told_with_its_phase_at_once(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_attached("vm1", "pvc-1")
    cluster.remove_vm("vm1")
    cluster.change_vm("vm1", phase="Scheduled")
    started = cluster.now()
    with pytest.raises(Unavailable, match=r"phase Scheduled.*delete the VMI"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert cluster.now() - started < 2


async def test_an_instance_that_ends_is_waited_for_and_asked_for_nothing(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1")
    cluster.remove_vm("vm1")
    cluster.change_vm("vm1", vmi_deleting=True)
    cluster.later(30.0, lambda: cluster.remove_instance("vm1"))
    await driver.unpublish("pvc-1", node("vm1"))
    assert verbs(cluster) == []


async def test_a_vm_that_is_being_deleted_takes_no_disk(cluster: InfraCluster, driver: Driver) -> None:
    cluster.delete_vm("vm1")
    with pytest.raises(FailedPrecondition, match="being deleted"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert ATTACHMENTS not in cluster.volumes["pvc-1"].claim_annotations
    assert verbs(cluster) == []


async def test_an_attach_to_a_vm_that_is_deleted_meanwhile_ends_at_once_and_may_still_be_under_way(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.later(2.0, lambda: cluster.delete_vm("vm1"))
    with pytest.raises(Unavailable, match="being deleted"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.now() < 3


async def test_a_detach_from_a_vm_that_is_being_deleted_waits_for_the_end_of_its_instance_and_says_so(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.delete_vm("vm1")
    context.begin(work := context.Work())
    detach = asyncio.create_task(driver.unpublish("pvc-1", node("vm1")))
    await asyncio.sleep(30)
    assert not detach.done()
    assert "disks are free when its VMI has ended" in work.waiting_for
    cluster.remove_instance("vm1")
    await asyncio.sleep(1)
    assert detach.done()
    await detach
    assert verbs(cluster) == ["add"]


async def test_a_deleted_vm_that_never_goes_does_not_hold_its_volumes_for_ever(
    cluster: InfraCluster, driver: Driver
) -> None:
    """A finalizer keeps it; without an instance, and never getting one again, it has no disks."""
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.delete_vm("vm1")
    cluster.remove_instance("vm1")
    await driver.unpublish("pvc-1", node("vm1"))
    await driver.publish("pvc-1", node("vm2"), WRITER)


async def test_a_vm_started_without_hotplug_is_refused_early(cluster: InfraCluster, driver: Driver) -> None:
    cluster.change_vm("vm1", hotplug_disabled=True)
    with pytest.raises(FailedPrecondition, match="disableHotplug"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


@pytest.mark.parametrize("phase", ["Running", "Scheduled"])
async def test_an_attach_goes_on_through_a_restart_of_the_vm(cluster: InfraCluster, driver: Driver, phase: str) -> None:
    """Since KubeVirt 1.6 the new instance stays Scheduled until it has its hot-plugged disks."""

    def restart() -> None:
        cluster.remove_instance("vm1")
        cluster.later(3.0, lambda: cluster.start("vm1", phase=phase))

    cluster.later(2.0, restart)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    machine = cluster.machines["vm1"]
    assert machine.running
    assert machine.attached("pvc-1")
    assert verbs(cluster) == ["add"]


async def test_a_vm_that_stops_while_it_attaches_is_told_so(cluster: InfraCluster, driver: Driver) -> None:
    cluster.later(2.0, lambda: cluster.remove_instance("vm1"))
    with pytest.raises(DeadlineExceeded, match="in VM spec; there is no VMI"):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_stuck_attach_of_a_vm_that_does_not_run_is_not_taken_back(
    cluster: InfraCluster, driver: Driver
) -> None:
    """The VM has it in its spec and gets it when it has started; taking it out would not reach the instance."""
    cluster.have_volume("pvc-2")
    cluster.stuck.add("pvc-1")
    cluster.later(2.0, lambda: cluster.change_vm("vm1", phase="Scheduling"))
    first = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1)
    second = asyncio.create_task(driver.publish("pvc-2", node("vm1"), WRITER))
    await asyncio.sleep(150)
    assert "remove" not in verbs(cluster)
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_a_status_that_outlives_the_instances_spec_is_no_attachment(
    cluster: InfraCluster, driver: Driver
) -> None:
    """Somebody plugged it again before KubeVirt had taken it out: its status is still that of the old disk."""
    cluster.have_attached("vm1", "pvc-1")
    cluster.change_vm("vm1", vmi_volumes={})
    cluster.later(1.0, lambda: cluster.sync("vm1"))
    with pytest.raises(DeadlineExceeded):
        await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_volume_without_its_claim_is_not_plugged(cluster: InfraCluster, driver: Driver) -> None:
    """It would keep the VM from every other change."""
    cluster.volumes["pvc-1"].claim = None
    cluster.touch("pvc-1")
    with pytest.raises(FailedPrecondition, match="no claim"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []


async def test_a_lost_claim_is_not_plugged(cluster: InfraCluster, driver: Driver) -> None:
    claim = cluster.volumes["pvc-1"].claim
    assert claim is not None
    cluster.volumes["pvc-1"].claim = replace(claim, phase="Lost")
    cluster.touch("pvc-1")
    with pytest.raises(FailedPrecondition, match="claim phase Lost"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []
