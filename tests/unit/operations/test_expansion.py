"""Growing volumes: what the claim is asked for, when it counts as grown, and what is said when it does not grow."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest

from kubevirt_csi.domain.capacity import MIB, CapacityRange
from kubevirt_csi.errors import (
    Aborted,
    DeadlineExceeded,
    DriverError,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
)
from kubevirt_csi.observe import context
from kubevirt_csi.observe.context import Work
from kubevirt_csi.operations.expansion import EXPAND_SECONDS
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime

GIB = 2**30


def to(size: int, *, limit: int = 0) -> CapacityRange:
    return CapacityRange(required=size, limit=limit)


def asked(cluster: InfraCluster, name: str = "pvc-1") -> int:
    """What the claim asks of its storage."""
    claim = cluster.volumes[name].claim
    assert claim is not None
    return claim.size_bytes


async def test_a_block_claim_asks_for_the_size_and_the_answer_comes_when_it_has_it(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.timing.grow = 7.0
    started = now()
    assert await driver.expand("pvc-1", to(2 * GIB)) == 2 * GIB
    assert asked(cluster) == 2 * GIB
    assert now() - started >= 7


async def test_the_claim_of_a_file_asks_for_so_much_that_kubevirt_makes_the_image_as_large(
    cluster: InfraCluster, driver: Driver
) -> None:
    """KubeVirt makes it claim x (1 - overhead), where CDI made a new one claim / (1 + overhead)."""
    cluster.overhead = Fraction(55, 1000)
    cluster.have_volume("pvc-1", size=10 * GIB, mode="Filesystem")
    wanted = 10 * GIB + GIB // 2
    assert asked(cluster) > wanted  # so comparing the plain sizes would say "already larger"
    assert await driver.expand("pvc-1", to(wanted)) == wanted
    assert asked(cluster) * (1 - Fraction(55, 1000)) >= wanted
    assert asked(cluster) % MIB == 0
    assert (asked(cluster) - MIB) * (1 - Fraction(55, 1000)) < wanted


async def test_a_grown_file_is_known_as_large_and_is_not_grown_again(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-1", size=GIB, mode="Filesystem")
    await driver.expand("pvc-1", to(3 * GIB))
    claimed = asked(cluster)
    assert await driver.expand("pvc-1", to(2 * GIB)) == 3 * GIB
    assert asked(cluster) == claimed
    assert (await driver.publish("pvc-1", node("vm1"), WRITER)).size_bytes == 3 * GIB


async def test_a_size_that_is_no_whole_mib_is_rounded_up(cluster: InfraCluster, driver: Driver) -> None:
    assert await driver.expand("pvc-1", to(GIB + 1)) == GIB + MIB
    assert asked(cluster) == GIB + MIB


@pytest.mark.parametrize("capacity", [to(GIB), to(GIB // 2), to(0, limit=2 * GIB)], ids=["equal", "smaller", "limit"])
async def test_a_volume_that_is_large_enough_is_left_alone(
    cluster: InfraCluster, driver: Driver, capacity: CapacityRange
) -> None:
    assert await driver.expand("pvc-1", capacity) == GIB
    assert asked(cluster) == GIB
    assert cluster.reads["file_system_overhead"] == 0


async def test_what_the_storage_made_larger_than_asked_counts(cluster: InfraCluster, driver: Driver) -> None:
    cluster.extra_bytes = 5 * MIB
    assert await driver.expand("pvc-1", to(2 * GIB)) == 2 * GIB + 5 * MIB
    assert await driver.expand("pvc-1", to(2 * GIB + MIB)) == 2 * GIB + 5 * MIB
    assert asked(cluster) == 2 * GIB


@pytest.mark.parametrize(
    ("capacity", "told"),
    [
        pytest.param(to(2 * GIB, limit=2 * GIB - 1), "at most", id="limit below what is required"),
        pytest.param(to(GIB + 1, limit=GIB + 2), "whole MiB", id="no whole MiB in between"),
        pytest.param(to(1, limit=GIB // 2), "1073741824 bytes already", id="larger than the limit already"),
    ],
)
async def test_a_range_that_cannot_be_met_is_refused_before_anything_is_written(
    cluster: InfraCluster, driver: Driver, capacity: CapacityRange, told: str
) -> None:
    with pytest.raises(OutOfRange, match=told):
        await driver.expand("pvc-1", capacity)
    assert asked(cluster) == GIB


async def test_a_storage_that_makes_more_than_the_limit_is_told(cluster: InfraCluster, driver: Driver) -> None:
    cluster.extra_bytes = 5 * MIB
    with pytest.raises(OutOfRange, match="2152726528 bytes of it, more than limit_bytes"):
        await driver.expand("pvc-1", to(2 * GIB, limit=2 * GIB + MIB))


@pytest.mark.parametrize("mode", ["Block", "Filesystem"])
async def test_a_growth_that_only_a_node_has_to_finish_is_done_for_the_controller(
    cluster: InfraCluster, driver: Driver, mode: str
) -> None:
    """FileSystemResizePending: for a volume that is attached nowhere nothing else will happen."""
    cluster.have_volume("pvc-1", mode=mode)
    cluster.growth["pvc-1"] = "for a node"
    assert await driver.expand("pvc-1", to(2 * GIB)) == 2 * GIB


async def test_a_growth_that_is_pending_from_before_does_not_count_for_a_larger_one(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.growth["pvc-1"] = "for a node"
    await driver.expand("pvc-1", to(2 * GIB))
    cluster.growth["pvc-1"] = "never"
    with pytest.raises(DeadlineExceeded, match="a pod has to be"):
        await driver.expand("pvc-1", to(3 * GIB))


async def test_a_refusal_of_the_storage_is_out_of_range_in_its_words(cluster: InfraCluster, driver: Driver) -> None:
    cluster.growth["pvc-1"] = "rpc error: code = OutOfRange desc = the pool has no such room"
    with pytest.raises(OutOfRange, match=r"ControllerResizeInfeasible.*the pool has no such room"):
        await driver.expand("pvc-1", to(9 * GIB))


async def test_after_a_refusal_less_can_be_asked_for(cluster: InfraCluster, driver: Driver) -> None:
    cluster.growth["pvc-1"] = "too much"
    with pytest.raises(OutOfRange):
        await driver.expand("pvc-1", to(9 * GIB))
    del cluster.growth["pvc-1"]
    assert await driver.expand("pvc-1", to(2 * GIB)) == 2 * GIB
    assert asked(cluster) == 2 * GIB


async def test_the_refusal_of_an_earlier_size_is_not_taken_for_one_of_this(cluster: InfraCluster) -> None:
    cluster.growth["pvc-1"] = "too much"
    with pytest.raises(OutOfRange):
        await Driver(cluster).expand("pvc-1", to(9 * GIB))
    del cluster.growth["pvc-1"]
    assert await Driver(cluster, lag=1.0).expand("pvc-1", to(2 * GIB)) == 2 * GIB


async def test_a_larger_growth_that_is_under_way_is_waited_for_and_not_made_smaller(
    cluster: InfraCluster, driver: Driver
) -> None:
    larger = asyncio.create_task(driver.expand("pvc-1", to(4 * GIB)))
    await asyncio.sleep(0.5)
    assert await Driver(cluster, process="replica-2").expand("pvc-1", to(2 * GIB)) == 4 * GIB
    assert await larger == 4 * GIB
    assert asked(cluster) == 4 * GIB


async def test_a_growth_that_does_not_end_is_told_and_goes_on_with_the_next_call(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.timing.grow = EXPAND_SECONDS + 5
    context.begin(work := Work())
    with pytest.raises(DeadlineExceeded, match="asks for 2147483648 bytes and has 1073741824"):
        await driver.expand("pvc-1", to(2 * GIB))
    assert "pvc-1 to grow in the infra cluster" in work.waiting_for
    assert work.written
    version = cluster.volumes["pvc-1"].claim
    assert await driver.expand("pvc-1", to(2 * GIB)) == 2 * GIB
    assert version is not None
    assert cluster.volumes["pvc-1"].claim != version


async def test_what_a_killed_process_wrote_is_what_the_next_one_waits_for(cluster: InfraCluster) -> None:
    cluster.have_volume("pvc-1", mode="Filesystem")
    first = asyncio.create_task(Driver(cluster).expand("pvc-1", to(2 * GIB)))
    await asyncio.sleep(0.5)
    first.cancel()
    claimed, version = asked(cluster), cluster.version()
    assert await Driver(cluster, process="replica-2").expand("pvc-1", to(2 * GIB)) == 2 * GIB
    assert asked(cluster) == claimed
    grown = cluster.volumes["pvc-1"].claim
    assert grown is not None
    assert int(grown.resource_version) == int(version) + 1  # the storage's write, and none of the second process


@pytest.mark.parametrize(
    ("error", "carried_out"),
    [(Unavailable("no answer"), True), (Unavailable("no answer"), False), (Stale("changed"), False)],
    ids=["lost answer", "lost request", "conflict"],
)
async def test_a_write_that_went_wrong_is_made_good_by_the_same_or_the_next_call(
    cluster: InfraCluster, driver: Driver, error: Exception, *, carried_out: bool
) -> None:
    cluster.fail("resize", error, carried_out_after=0.1 if carried_out else None)
    if isinstance(error, DriverError):
        with pytest.raises(Unavailable):
            await driver.expand("pvc-1", to(2 * GIB))
    assert await driver.expand("pvc-1", to(2 * GIB)) == 2 * GIB


async def test_a_quota_and_a_class_that_refuses_are_passed_on(cluster: InfraCluster, driver: Driver) -> None:
    for error in (ResourceExhausted("exceeded quota: full"), OutOfRange("must support resize")):
        cluster.fail("resize", error)
        with pytest.raises(type(error), match=str(error)):
            await driver.expand("pvc-1", to(2 * GIB))
    assert asked(cluster) == GIB


async def test_a_claim_that_is_not_bound_cannot_grow_yet(cluster: InfraCluster, driver: Driver) -> None:
    cluster.behaviour["late"] = "WaitForFirstConsumer"
    volume = cluster.have_volume("pvc-1", phase="WaitForFirstConsumer")
    assert volume.claim is not None
    volume.claim = type(volume.claim)(uid="claim", resource_version="1", phase="Pending", size_bytes=GIB)
    cluster.touch("pvc-1")
    started = now()
    with pytest.raises(Unavailable, match=r"first attach.*WaitForFirstConsumer"):
        await driver.expand("pvc-1", to(2 * GIB))
    assert now() - started < 1  # whoever waits here keeps the attach out that would bind it


@pytest.mark.parametrize("ours", [False, None], ids=["another tenant's", "none"])
async def test_a_volume_that_is_not_this_tenants_is_not_found(
    cluster: InfraCluster, driver: Driver, *, ours: bool | None
) -> None:
    if ours is not None:
        cluster.have_volume("pvc-9", ours=ours)
    with pytest.raises(NotFound, match="pvc-9 does not exist"):
        await driver.expand("pvc-9", to(2 * GIB))
    assert ours is None or asked(cluster, "pvc-9") == GIB


async def test_a_volume_that_is_being_deleted_does_not_grow(cluster: InfraCluster, driver: Driver) -> None:
    cluster.timing.gc = 60.0
    deleting = asyncio.create_task(driver.delete("pvc-1"))
    await asyncio.sleep(1)
    with pytest.raises(Aborted, match="is being deleted"):
        await driver.expand("pvc-1", to(2 * GIB))
    await deleting
