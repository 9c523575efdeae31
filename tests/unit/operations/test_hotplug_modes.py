"""Hot-plug as KubeVirt's feature gates have it: queued (HotplugVolumes on), declarative, or off."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kubevirt_csi.domain.infra_volumes import ATTACHMENTS
from kubevirt_csi.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from kubevirt_csi.ports.infra import Postponed, Stale
from tests.fakes.driver import WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster
from tests.fakes.infra_machines import Mode

pytestmark = pytest.mark.looptime


def verbs(cluster: InfraCluster) -> list[tuple[str, str]]:
    return [(verb, volume) for _, verb, _, volume in cluster.journal]


@pytest.fixture
def legacy(cluster: InfraCluster) -> InfraCluster:
    cluster.mode = Mode.LEGACY
    return cluster


@pytest.mark.parametrize("mode", [Mode.LEGACY, Mode.DECLARATIVE])
async def test_a_disk_comes_and_goes_with_one_request_each_in_either_mode(
    cluster: InfraCluster, driver: Driver, mode: Mode
) -> None:
    cluster.mode = mode
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.machines["vm1"].attached("pvc-1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")
    assert verbs(cluster) == [("add", "pvc-1"), ("remove", "pvc-1")]


async def test_an_attach_that_waits_in_the_queue_is_not_sent_again(legacy: InfraCluster, driver: Driver) -> None:
    legacy.timing.queue = 3.0
    other = Driver(legacy, process="replica-2")
    first = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1)
    assert legacy.machines["vm1"].volumes["pvc-1"].queued
    assert await other.publish("pvc-1", node("vm1"), WRITER) == await first
    assert verbs(legacy) == [("add", "pvc-1")]


async def test_an_attach_that_waits_in_the_queue_is_no_detached_volume_although_kubevirt_says_it_does_not_exist(
    legacy: InfraCluster, driver: Driver
) -> None:
    legacy.timing.queue = 20.0
    attach = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1)
    attach.cancel()
    with pytest.raises(Stale, match="does not exist"):
        legacy.remove_volume("vm1", "pvc-1")

    await driver.unpublish("pvc-1", node("vm1"))
    assert now() > 1_700_000_020
    await asyncio.sleep(60)
    assert not legacy.machines["vm1"].holds("pvc-1")
    assert verbs(legacy) == [("add", "pvc-1"), ("remove", "pvc-1")]


async def test_a_queue_that_nobody_works_off_is_told_and_the_attach_is_not_forgotten(
    legacy: InfraCluster, driver: Driver
) -> None:
    legacy.timing.queue = 10_000.0
    attach = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1)
    attach.cancel()
    with pytest.raises(Unavailable, match=r"volumeRequests.*virt-controller"):
        await driver.unpublish("pvc-1", node("vm1"))
    assert ATTACHMENTS in legacy.volumes["pvc-1"].claim_annotations
    assert verbs(legacy) == [("add", "pvc-1")]


async def test_a_removal_that_waits_in_the_queue_is_not_sent_again_but_waited_for(
    legacy: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    legacy.timing.queue = 5.0
    legacy.remove_volume("vm1", "pvc-1")
    await driver.unpublish("pvc-1", node("vm1"))
    assert not legacy.machines["vm1"].holds("pvc-1")
    assert verbs(legacy) == [("add", "pvc-1"), ("remove", "pvc-1")]


async def test_a_disk_whose_removal_waits_in_the_queue_is_not_attached_any_more(
    legacy: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    legacy.timing.queue = 5.0
    legacy.remove_volume("vm1", "pvc-1")
    with pytest.raises(Unavailable, match=r"still detaching.*waiting to be removed"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    await asyncio.sleep(20)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster_verbs_end_with_add(legacy)


def cluster_verbs_end_with_add(cluster: InfraCluster) -> bool:
    return verbs(cluster) == [("add", "pvc-1"), ("remove", "pvc-1"), ("add", "pvc-1")]


async def test_a_removal_that_waits_in_the_queue_keeps_other_changes_of_the_vm_waiting(
    legacy: InfraCluster, driver: Driver
) -> None:
    legacy.have_volume("pvc-2")
    await driver.publish("pvc-1", node("vm1"), WRITER)
    legacy.timing.queue = 5.0
    legacy.remove_volume("vm1", "pvc-1")
    removed_at = legacy.now()
    await driver.publish("pvc-2", node("vm1"), WRITER)
    assert legacy.journal[-1][0] >= removed_at + 10


async def test_a_volume_on_another_vm_is_held_there_while_its_attach_waits_in_the_queue(
    legacy: InfraCluster, driver: Driver
) -> None:
    legacy.change_vm("vm2", volumes={"pvc-1": replace(legacy.plugged("pvc-1"), queued=True)})
    with pytest.raises(FailedPrecondition, match="tenant-a/vm2"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(legacy) == []


async def test_a_refusal_that_passes_by_itself_leaves_no_entry_behind(legacy: InfraCluster, driver: Driver) -> None:
    legacy.fail("add_volume", Postponed("Cannot handle volume requests while VMI migration is in progress"))
    with pytest.raises(Unavailable, match="migration is in progress"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert ATTACHMENTS not in legacy.volumes["pvc-1"].claim_annotations
    await driver.unpublish("pvc-1", node("vm1"))


async def test_with_both_gates_off_an_attach_is_refused_by_the_gates_names_and_leaves_nothing(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.mode = Mode.OFF
    with pytest.raises(FailedPrecondition, match="DeclarativeHotplugVolumes or HotplugVolumes"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert ATTACHMENTS not in cluster.volumes["pvc-1"].claim_annotations
    assert verbs(cluster) == []


async def test_with_both_gates_off_what_is_attached_stays_published_and_cannot_be_detached(
    cluster: InfraCluster, driver: Driver
) -> None:
    first = await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.mode = Mode.OFF
    assert await driver.publish("pvc-1", node("vm1"), WRITER) == first
    with pytest.raises(FailedPrecondition, match="DeclarativeHotplugVolumes or HotplugVolumes"):
        await driver.unpublish("pvc-1", node("vm1"))
    cluster.mode = Mode.DECLARATIVE
    await driver.unpublish("pvc-1", node("vm1"))


@pytest.mark.parametrize(("before", "after"), [(Mode.LEGACY, Mode.DECLARATIVE), (Mode.DECLARATIVE, Mode.LEGACY)])
async def test_a_disk_leaves_in_the_other_mode_than_it_came_in(
    cluster: InfraCluster, driver: Driver, before: Mode, after: Mode
) -> None:
    cluster.mode = before
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.mode = after
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_what_keeps_kubevirt_from_taking_a_change_over_is_in_the_text(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.change_vm(
        "vm1",
        migrates_volumes=True,
        failure="Error encountered while handling declarative hotplug volumes: admission webhook denied",
    )
    with pytest.raises(DeadlineExceeded, match=r"in VM spec; updateVolumesStrategy.*VM reports: Error encountered"):
        await driver.publish("pvc-1", node("vm1"), WRITER)


@pytest.mark.parametrize("mode", list(Mode))
async def test_any_answer_409_is_followed_by_a_look_at_the_state(
    cluster: InfraCluster, driver: Driver, mode: Mode
) -> None:
    """Another one attached it in between: the code alone would say "exists" of a foreign disk as well."""
    cluster.mode = mode
    cluster.fail("add_volume", Stale("because volume with that name already exists"))
    cluster.later(0.02, lambda: cluster.have_attached("vm1", "pvc-1"))
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == []
