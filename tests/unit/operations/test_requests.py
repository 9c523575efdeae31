"""What a volume's life asks of the API, and that what is not asked is not missed: a lagging cache changes no answer."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.errors import AlreadyExists, FailedPrecondition, Unavailable
from kubevirt_csi.operations.provisioning import CreateRequest
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import WRITER, Driver, node
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime

NEW = CreateRequest(name="pvc-new", capabilities=[WRITER], capacity=CapacityRange(required=2**30), parameters={})
FEW = {"holders": 2, "get_instance": 1, "get_claim": 1}
"""All machines (two requests) before attach and deletion, the instance after an attach, entries before a deletion."""


@pytest.mark.parametrize("seconds", [1.0, 100.0])
async def test_a_life_takes_the_same_few_reads_however_long_the_hot_plug_takes(
    cluster: InfraCluster, driver: Driver, seconds: float
) -> None:
    cluster.timing.attach = lambda: seconds
    await driver.create(NEW)
    await driver.publish("pvc-new", node("vm1"), WRITER)
    await driver.unpublish("pvc-new", node("vm1"))
    await driver.delete("pvc-new")
    assert "pvc-new" not in cluster.volumes
    assert dict(cluster.reads) == FEW


async def test_a_cache_that_lags_by_a_moment_costs_no_more_reads(cluster: InfraCluster) -> None:
    driver = Driver(cluster, lag=0.04)
    await driver.create(NEW)
    await asyncio.sleep(1.0)
    await driver.publish("pvc-new", node("vm1"), WRITER)
    await driver.unpublish("pvc-new", node("vm1"))
    await asyncio.sleep(1.0)
    await driver.delete("pvc-new")
    assert dict(cluster.reads) == FEW


async def test_a_volume_that_the_cache_has_not_heard_of_is_found_by_its_name(cluster: InfraCluster) -> None:
    made = await Driver(cluster).create(NEW)
    late = Driver(cluster, process="replica-2", lag=30.0)
    late.replica.forget("pvc-new")
    assert await late.create(NEW) == made


async def test_a_foreign_name_that_the_cache_does_not_know_is_refused(cluster: InfraCluster, driver: Driver) -> None:
    await driver.create(NEW)
    cluster.volumes["pvc-new"].ours = False
    late = Driver(cluster, process="replica-2", lag=30.0)
    late.replica.forget("pvc-new")
    with pytest.raises(AlreadyExists, match="not this tenant's"):
        await late.create(NEW)


async def test_an_entry_that_the_cache_has_not_heard_of_keeps_a_second_vm_from_the_volume(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.exclusive.add("pvc-1")
    late = Driver(cluster, process="replica-2", lag=30.0)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    with pytest.raises(FailedPrecondition, match="vm1"):
        await late.publish("pvc-1", node("vm2"), WRITER)
    assert cluster.violations == []


async def test_an_entry_that_the_cache_has_not_heard_of_keeps_the_volume_from_being_deleted(
    cluster: InfraCluster, driver: Driver
) -> None:
    late = Driver(cluster, process="replica-2", lag=30.0)
    cluster.fail("add_volume", Unavailable("no answer"), carried_out_after=4.0)
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    with pytest.raises(FailedPrecondition, match="vm1"):
        await late.delete("pvc-1")
    await asyncio.sleep(5.0)
    assert "pvc-1" in cluster.volumes
    assert cluster.machines["vm1"].holds("pvc-1")


async def test_a_volume_whose_claim_the_cache_shows_although_it_is_gone_is_deleted_all_the_same(
    cluster: InfraCluster, driver: Driver
) -> None:
    late = Driver(cluster, process="replica-2", lag=30.0)
    await driver.delete("pvc-1")
    await late.delete("pvc-1")
    assert "pvc-1" not in cluster.volumes


async def test_an_attach_that_was_undone_meanwhile_is_not_reported_by_a_late_cache(cluster: InfraCluster) -> None:
    late = Driver(cluster, lag=3.0)
    publishing = asyncio.create_task(late.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(6.0)
    assert cluster.machines["vm1"].attached("pvc-1")
    cluster.remove_volume("vm1", "pvc-1")
    with pytest.raises(Unavailable, match="taken out"):
        await publishing


async def test_an_entry_made_while_it_was_to_be_removed_makes_everything_be_read_again(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.reads.clear()
    cluster.fail("annotate", Stale("changed meanwhile"))
    await driver.unpublish("pvc-1", node("vm1"))
    assert dict(cluster.reads) == {"get_volume": 1, "get_machine": 1}


async def test_a_cache_that_has_not_seen_the_instance_get_the_disk_does_not_say_that_it_is_gone(
    cluster: InfraCluster, driver: Driver
) -> None:
    driver.replica.delay_instance("vm1")
    publishing = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(3.0)
    publishing.cancel()
    assert (instance := cluster.machines["vm1"].instance) is not None
    assert "pvc-1" in instance.volumes
    await driver.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_an_instance_that_the_cache_shows_no_longer_is_read_before_its_disk_is_called_gone(
    cluster: InfraCluster, driver: Driver
) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.timing.sync = 20.0
    unpublishing = asyncio.create_task(driver.unpublish("pvc-1", node("vm1")))
    await asyncio.sleep(5.0)
    driver.replica.lose_instance("vm1")
    await asyncio.sleep(5.0)
    assert cluster.machines["vm1"].holds("pvc-1")
    assert not unpublishing.done()
    await unpublishing
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_a_disk_that_the_cache_never_showed_is_looked_for_afresh_before_it_is_called_gone(
    cluster: InfraCluster, driver: Driver
) -> None:
    late = Driver(cluster, process="replica-1", lag=30.0)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    await late.unpublish("pvc-1", node("vm1"))
    assert not cluster.machines["vm1"].holds("pvc-1")


async def test_a_change_that_comes_after_the_machines_were_read_reads_them_itself(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_volume("pvc-2")
    cluster.timing.request = 1.0
    first = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(0.5)  # it has collected, and the machines are being read
    await driver.publish("pvc-2", node("vm1"), WRITER)
    await first
    assert cluster.reads["holders"] == 2
