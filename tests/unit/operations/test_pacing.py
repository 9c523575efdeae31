"""Pacing: changes of one VM come in batches, each when the last has settled, and a stuck one gives way."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.errors import DeadlineExceeded, Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime


def have_volumes(cluster: InfraCluster, count: int) -> list[str]:
    names = [f"pvc-{number:02}" for number in range(count)]
    for name in names:
        cluster.have_volume(name)
        cluster.exclusive.add(name)
    return names


def adds(cluster: InfraCluster) -> list[tuple[float, str]]:
    return [(at, volume) for at, verb, _, volume in cluster.journal if verb == "add"]


async def test_changes_to_an_idle_vm_are_collected_and_sent_back_to_back(cluster: InfraCluster, driver: Driver) -> None:
    names = have_volumes(cluster, 20)
    started = now()
    await asyncio.gather(*(driver.publish(name, node("vm1"), WRITER) for name in names))
    times = [at for at, _ in adds(cluster)]
    assert len(times) == 20
    assert max(times) - min(times) < 5
    assert now() - started < 15


async def test_a_lone_change_waits_fifty_milliseconds_and_no_longer(cluster: InfraCluster, driver: Driver) -> None:
    cluster.timing.request = 0.0
    await driver.publish("pvc-1", node("vm1"), WRITER)
    [(at, _)] = adds(cluster)
    assert at == pytest.approx(0.05, abs=0.01)


async def test_a_burst_that_takes_a_moment_to_come_in_is_one_batch(cluster: InfraCluster, driver: Driver) -> None:
    names = have_volumes(cluster, 10)

    async def after(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        await driver.publish(name, node("vm1"), WRITER)

    await asyncio.gather(*(after(0.04 * number, name) for number, name in enumerate(names)))
    assert cluster.reads["holders"] == 1


async def test_a_stream_that_never_pauses_is_not_waited_for_beyond_half_a_second(
    cluster: InfraCluster, driver: Driver
) -> None:
    names = have_volumes(cluster, 30)

    async def after(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        await driver.publish(name, node("vm1"), WRITER)

    await asyncio.gather(*(after(0.04 * number, name) for number, name in enumerate(names)))
    assert adds(cluster)[0][0] <= 0.6


async def test_many_who_wait_for_a_turn_do_not_each_read_the_vm(cluster: InfraCluster, driver: Driver) -> None:
    names = have_volumes(cluster, 50)
    await asyncio.gather(*(driver.publish(name, node("vm1"), WRITER) for name in names))
    assert dict(cluster.reads) == {"holders": 1, "get_instance": 50}


async def test_conflicts_of_many_attaches_at_once_are_outlasted(cluster: InfraCluster, driver: Driver) -> None:
    names = have_volumes(cluster, 20)
    cluster.fail("add_volume", Stale("the server rejected our request"), times=25)
    await asyncio.gather(*(driver.publish(name, node("vm1"), WRITER) for name in names))
    assert sorted(volume for _, volume in adds(cluster)) == names


async def test_a_steady_stream_of_changes_does_not_starve(cluster: InfraCluster, driver: Driver) -> None:
    cluster.timing.attach = lambda: 8.0
    names = have_volumes(cluster, 10)

    async def after(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        await driver.publish(name, node("vm1"), WRITER)

    await asyncio.gather(*(after(2.0 * number, name) for number, name in enumerate(names)))
    assert now() - 1_700_000_000.0 < 60


async def test_the_next_change_waits_until_all_disks_of_the_vm_are_ready(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-other", phase="MountedToPod", target="")
    cluster.later(30.0, lambda: cluster.have_attached("vm1", "pvc-other"))
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert adds(cluster)[0][0] >= 30


async def test_a_change_of_the_other_replica_is_waited_for_as_well(cluster: InfraCluster, driver: Driver) -> None:
    other = Driver(cluster, process="replica-2", lag=3.0)
    have_volumes(cluster, 2)
    first = asyncio.create_task(driver.publish("pvc-00", node("vm1"), WRITER))
    await asyncio.sleep(1.0)
    await other.publish("pvc-01", node("vm1"), WRITER)
    await first
    (first_at, _), (second_at, _) = adds(cluster)
    assert second_at - first_at >= 5


async def test_two_vms_do_not_wait_for_each_other(cluster: InfraCluster, driver: Driver) -> None:
    have_volumes(cluster, 2)
    started = now()
    await asyncio.gather(driver.publish("pvc-00", node("vm1"), WRITER), driver.publish("pvc-01", node("vm2"), WRITER))
    assert now() - started < 8


async def test_detaches_go_first_in_a_batch(cluster: InfraCluster, driver: Driver) -> None:
    have_volumes(cluster, 3)
    await driver.publish("pvc-00", node("vm1"), WRITER)
    await asyncio.gather(
        driver.publish("pvc-01", node("vm1"), WRITER),
        driver.publish("pvc-02", node("vm1"), WRITER),
        driver.unpublish("pvc-00", node("vm1")),
    )
    assert [verb for _, verb, _, _ in cluster.journal[1:]] == ["remove", "add", "add"]


async def test_a_volume_that_has_to_be_populated_goes_alone_and_last(cluster: InfraCluster, driver: Driver) -> None:
    have_volumes(cluster, 3)
    cluster.set_phase("pvc-00", "PendingPopulation")
    cluster.timing.populate = 40.0
    started = now()
    lone = asyncio.create_task(driver.publish("pvc-00", node("vm1"), WRITER))
    await asyncio.sleep(0.01)
    await asyncio.gather(*(driver.publish(name, node("vm1"), WRITER) for name in ("pvc-01", "pvc-02")))
    assert now() - started < 10
    await lone
    assert [volume for _, volume in adds(cluster)][-1] == "pvc-00"


async def test_what_comes_while_a_volume_is_populated_waits_for_that_and_two_such_do_not_go_together(
    cluster: InfraCluster, driver: Driver
) -> None:
    have_volumes(cluster, 3)
    for name in ("pvc-00", "pvc-01"):
        cluster.set_phase(name, "WaitForFirstConsumer")
    cluster.timing.populate = 40.0
    lone = [asyncio.create_task(driver.publish(name, node("vm1"), WRITER)) for name in ("pvc-00", "pvc-01")]
    await asyncio.sleep(1)
    assert [volume for _, volume in adds(cluster)] == ["pvc-00"]
    await driver.publish("pvc-02", node("vm1"), WRITER)
    await asyncio.gather(*lone)
    (first, _), (second, quick), (third, _) = adds(cluster)
    assert quick == "pvc-02"
    assert second - first >= 40
    assert third > second


async def test_a_stuck_attach_that_nobody_waits_for_is_left_alone(cluster: InfraCluster, driver: Driver) -> None:
    cluster.stuck.add("pvc-1")
    cluster.later(200.0, lambda: cluster.unstick("pvc-1"))
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert [verb for _, verb, _, _ in cluster.journal] == ["add"]


async def test_a_stuck_attach_is_taken_back_after_two_minutes_when_others_wait(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.stuck.add("pvc-1")
    cluster.have_volume("pvc-2")
    stuck = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1.0)
    started = now()
    await driver.publish("pvc-2", node("vm1"), WRITER)
    assert 110 < now() - started < 150
    with pytest.raises(Unavailable, match=r"taken back.*Bound"):
        await stuck
    assert [(verb, volume) for _, verb, _, volume in cluster.journal] == [
        ("add", "pvc-1"),
        ("remove", "pvc-1"),
        ("add", "pvc-2"),
    ]


async def test_what_was_taken_back_is_tried_again_after_growing_pauses_and_with_its_true_reason(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.stuck.add("pvc-1")
    cluster.have_volume("pvc-2")
    stuck = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1.0)
    await driver.publish("pvc-2", node("vm1"), WRITER)
    with pytest.raises(Unavailable):
        await stuck
    with pytest.raises(Unavailable, match=r"tried again in .*PVC is in phase Bound"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    cluster.stuck.clear()
    await asyncio.sleep(31)
    await driver.publish("pvc-1", node("vm1"), WRITER)


async def test_a_stuck_volume_does_not_drag_down_the_others_of_its_batch_for_ever(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.stuck.add("pvc-1")
    cluster.have_volume("pvc-2")

    async def insist(name: str) -> None:
        while True:
            try:
                await driver.publish(name, node("vm1"), WRITER)
            except (Unavailable, DeadlineExceeded):
                await asyncio.sleep(5)
            else:
                return

    stuck = asyncio.create_task(insist("pvc-1"))
    await insist("pvc-2")
    assert now() - 1_700_000_000.0 < 600
    stuck.cancel()
    await asyncio.wait({stuck})


async def test_a_leftover_that_never_settles_holds_up_a_vm_once_for_two_minutes(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.have_attached("vm1", "leftover", phase="Pending", target="")
    cluster.have_volume("pvc-2")
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert 119 < adds(cluster)[0][0] < 130
    cluster.have_attached("vm1", "leftover", phase="Pending", target="")
    started = now()
    await driver.publish("pvc-2", node("vm1"), WRITER)
    assert now() - started < 10


async def test_a_detach_of_a_stuck_volume_need_not_wait_for_it(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-1", phase="Pending", target="")
    started = now()
    await driver.unpublish("pvc-1", node("vm1"))
    assert now() - started < 10


async def test_who_waits_for_a_turn_says_what_for(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_attached("vm1", "pvc-other", phase="MountedToPod", target="")
    work = context.Work()
    context.begin(work)
    task = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1.0)
    assert "pvc-other under way" in work.waiting_for
    task.cancel()
    await asyncio.wait({task})


async def test_a_turn_that_is_given_up_lets_the_next_one_go(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-2")
    cluster.stuck.add("pvc-1")
    task = asyncio.create_task(driver.publish("pvc-1", node("vm1"), WRITER))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait({task})
    cluster.unstick("pvc-1")
    started = now()
    await driver.publish("pvc-2", node("vm1"), WRITER)
    assert now() - started < 15


async def test_entries_of_a_batch_are_written_while_those_before_it_are_sent(
    cluster: InfraCluster, driver: Driver
) -> None:
    """Twenty entries and twenty requests of one second each: together, then one after the other."""
    cluster.timing.request = 1.0
    names = have_volumes(cluster, 20)
    await asyncio.gather(*(driver.publish(name, node("vm1"), WRITER) for name in names))
    times = [at for at, _ in adds(cluster)]
    assert max(times) - min(times) == pytest.approx(19.0, abs=0.1)
