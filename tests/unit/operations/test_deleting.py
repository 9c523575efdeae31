"""Deleting volumes: only what no VM has or may be getting, and done only when DataVolume and claim are gone."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime


async def test_a_deleted_volume_is_gone_with_its_claim(cluster: InfraCluster, driver: Driver) -> None:
    cluster.timing.gc = 7.0
    started = now()
    await driver.delete("pvc-1")
    assert "pvc-1" not in cluster.volumes
    assert now() - started >= 7


async def test_a_volume_that_does_not_exist_is_deleted(driver: Driver) -> None:
    await driver.delete("fake-vol-id")


async def test_another_tenants_volume_is_not_deleted(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-9", ours=False)
    await driver.delete("pvc-9")
    assert "pvc-9" in cluster.volumes


async def test_a_bare_claim_is_deleted(cluster: InfraCluster, driver: Driver) -> None:
    cluster.have_volume("pvc-1", data_volume=False)
    await driver.delete("pvc-1")
    assert "pvc-1" not in cluster.volumes


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_a_volume_that_a_vm_has_is_not_deleted(cluster: InfraCluster, driver: Driver, running: bool) -> None:
    await driver.publish("pvc-1", node("vm1"), WRITER)
    if not running:
        cluster.remove_instance("vm1")
    with pytest.raises(FailedPrecondition, match="tenant-a/vm1"):
        await driver.delete("pvc-1")
    assert "pvc-1" in cluster.volumes


async def test_an_attach_that_may_still_arrive_keeps_the_volume(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("add_volume", Unavailable("no answer"))
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    with pytest.raises(FailedPrecondition, match="tenant-a/vm1"):
        await driver.delete("pvc-1")
    await asyncio.sleep(45)
    await driver.delete("pvc-1")


async def test_another_object_under_the_name_is_looked_at_anew(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("delete", Stale("another UID"))
    await driver.delete("pvc-1")
    assert "pvc-1" not in cluster.volumes


async def test_what_is_left_of_a_deleted_volume_is_told(cluster: InfraCluster, driver: Driver) -> None:
    cluster.timing.gc = 1000.0
    with pytest.raises(DeadlineExceeded, match=r"left: its claim \(Bound, which a pod may still use"):
        await driver.delete("pvc-1")
