"""Trimming on a fake host: which volumes, when, and that it is never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.ports.host import Record
from tests.fakes.host import FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode, publication, volume

A = "/kubelet/pods/a"
DAY = 86400.0

pytestmark = pytest.mark.looptime  # waiting costs nothing


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(FakeHost(), disk_wait_seconds=0.0)
    node.host.plug("vdb", serial=SERIAL)
    return node


def trims(node: FakeNode) -> list[str]:
    return [call for call in node.host.calls if call.startswith("trim")]


async def test_a_volume_is_trimmed_once_however_many_pods_see_it(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), A))
    await node.trimming.trim_all()
    assert trims(node) == [f"trim {STAGING}"]


async def test_only_mounted_writable_volumes_of_this_node_are_trimmed(node: FakeNode) -> None:
    node.host.mount_elsewhere(node.host.plug("vda", serial="the system's"), "/")
    node.host.records["gone"] = Record(volume_id="gone", serial="no disk here")
    node.host.records["unmounted"] = Record(volume_id="unmounted", serial=SERIAL)
    node.host.mount_elsewhere(node.host.plug("vdc", serial="read-only"), "/c", options="ro")
    node.host.records["read-only"] = Record(volume_id="read-only", serial="read-only")
    await node.trimming.trim_all()
    assert trims(node) == []


async def test_a_part_of_a_volume_that_a_pod_sees_is_not_what_is_trimmed(node: FakeNode) -> None:
    disk = node.host.disks["vdb"]
    node.host.records["pvc-1"] = Record(volume_id="pvc-1", serial=SERIAL)
    node.host.mount_elsewhere(disk, "/kubelet/pods/subpath", root="/sub")
    node.host.mount_elsewhere(disk, STAGING)
    await node.trimming.trim_all()
    assert trims(node) == [f"trim {STAGING}"]


async def test_a_volume_that_cannot_be_trimmed_does_not_keep_the_others_from_it(node: FakeNode) -> None:
    await node.staging.stage(volume())
    node.host.mount_elsewhere(node.host.plug("vdc", serial="second"), "/c")
    node.host.records["pvc-2"] = Record(volume_id="pvc-2", serial="second")
    node.host.failures["trim"] = Unavailable("too slow")
    await node.trimming.trim_all()
    assert trims(node) == ["trim /c"]


async def test_records_that_cannot_be_read_are_no_end_of_trimming(node: FakeNode) -> None:
    await node.staging.stage(volume())
    node.host.failures["known"] = Unavailable("disk busy")
    await node.trimming.trim_all()
    await node.trimming.trim_all()
    assert trims(node) == [f"trim {STAGING}"]


@asynccontextmanager
async def trimming_every_day(node: FakeNode) -> AsyncIterator[None]:
    task = asyncio.ensure_future(node.trimming.run(interval_seconds=DAY))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_the_first_trim_comes_by_chance_and_the_others_one_interval_later(node: FakeNode) -> None:
    await node.staging.stage(volume())
    async with trimming_every_day(node):  # the chance of the fake node is one half
        await asyncio.sleep(DAY / 2 - 1)
        assert trims(node) == []
        await asyncio.sleep(2)
        assert len(trims(node)) == 1
        await asyncio.sleep(DAY)
        assert len(trims(node)) == 2


async def test_a_defect_ends_the_task_so_that_the_process_hears_of_it(node: FakeNode) -> None:
    await node.staging.stage(volume())
    node.host.failures["trim"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await node.trimming.run(interval_seconds=DAY)


@pytest.mark.parametrize("undo", ["unstage", "unpublish"])
async def test_unmounting_ends_the_trim_of_its_volume_first_and_the_next_volume_is_trimmed(
    node: FakeNode, undo: str
) -> None:
    await node.staging.stage(volume())
    node.host.mount_elsewhere(node.host.plug("vdc", serial="second"), "/c")
    node.host.records["pvc-2"] = Record(volume_id="pvc-2", serial="second")
    node.host.slow_to_trim.add(STAGING)
    if undo == "unpublish":
        await node.publishing.publish(publication(volume(), A))
    trimming = asyncio.ensure_future(node.trimming.trim_all())
    await asyncio.sleep(1)
    node.host.calls.clear()
    await (node.unstage() if undo == "unstage" else node.unpublish(A))
    unmounted = STAGING if undo == "unstage" else A
    assert node.host.calls[:2] == [f"trim of {STAGING} ended", f"unmount {unmounted}"]
    await trimming
    assert "trim /c" in node.host.calls


async def test_unmounting_another_volume_does_not_end_a_trim(node: FakeNode) -> None:
    await node.staging.stage(volume())
    node.host.slow_to_trim.add(STAGING)
    trimming = asyncio.ensure_future(node.trimming.trim_all())
    await asyncio.sleep(1)
    await node.unpublish("/kubelet/pods/b", volume_id="pvc-2")
    assert not trimming.done()
    trimming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trimming
    assert node.host.calls[-1] == f"trim of {STAGING} ended"


async def test_a_volume_whose_trim_fails_while_it_is_unmounted_is_unmounted(node: FakeNode) -> None:
    await node.staging.stage(volume())
    node.host.failures["trim"] = Internal("fstrim failed")
    await node.trimming.trim_all()
    await node.unstage()
    assert node.host.mounts == []
