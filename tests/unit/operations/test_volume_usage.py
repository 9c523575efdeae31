"""Stats and health: of what is mounted, NotFound for all else, and an answer in time when nothing answers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.errors import NotFound, Unavailable
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.operations.usage import VolumeUsage
from kubevirt_csi.ports.host import Finding
from tests.fakes.host import FILLED, MIB, FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode, publication, volume

pytestmark = pytest.mark.looptime

TARGET = "/kubelet/pods/a"
OTHER = "/kubelet/pods/b"


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(FakeHost(), disk_wait_seconds=0.0)
    node.host.plug("vdb", serial=SERIAL)
    return node


async def at(node: FakeNode, path: str = TARGET) -> Finding:
    return await node.usage.at(path, volume_id="pvc-1")


def looks(node: FakeNode) -> list[str]:
    return [call for call in node.host.calls if call.startswith("look")]


def reasons(found: Finding) -> list[Reason]:
    return [ailment.reason for ailment in found.ailments]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_mounted_volume_tells_bytes_and_inodes(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    assert await at(node) == Finding(figures=FILLED)


async def test_a_raw_volume_tells_its_size(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(block=True), TARGET))
    assert await at(node) == Finding(figures=8 * MIB)


@pytest.mark.parametrize("path", ["some/path", "/nowhere", "/kubelet/pods"])
async def test_where_nothing_is_mounted_no_volume_is_found(node: FakeNode, path: str) -> None:
    node.host.folders.add("/kubelet/pods")
    with pytest.raises(NotFound):
        await at(node, path)


async def test_a_volume_that_was_unmounted_while_it_was_looked_at_is_not_found(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.hanging[TARGET] = []
    asked = asyncio.create_task(at(node))
    await asyncio.sleep(1)
    await node.unpublish(TARGET)
    node.host.mount_elsewhere(node.host.plug("vdc", serial="other"), TARGET)
    node.host.answer(TARGET)
    with pytest.raises(NotFound, match="unmounted meanwhile"):
        await asked


async def test_a_hung_volume_is_abnormal_in_five_seconds_and_then_at_once(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.hanging[TARGET] = []
    began = now()
    first = await at(node)
    assert now() - began == 5.0
    assert first.figures is None
    assert [(each.severity, each.reason) for each in first.ailments] == [(Severity.INACCESSIBLE, Reason.NOT_RESPONDING)]
    assert first.ailments[0].message.startswith("since 2026-01-02T03:04:05Z: its ext4, or the disk below it, does not")
    node.now += timedelta(hours=1)
    second = await at(node)
    assert now() - began == 5.0
    assert second == first
    assert looks(node) == [f"look at {TARGET}"]


async def test_calls_that_come_while_a_look_is_young_wait_for_it(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.hanging[TARGET] = []
    asked = [asyncio.create_task(at(node)) for _ in range(3)]
    await asyncio.sleep(4)
    node.host.answer(TARGET)
    assert await asyncio.gather(*asked) == [Finding(figures=FILLED)] * 3
    assert looks(node) == [f"look at {TARGET}"]


async def test_a_volume_that_answers_again_is_looked_at_again_and_is_normal(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.hanging[TARGET] = []
    await at(node)
    node.host.answer(TARGET)
    assert await at(node) == Finding(figures=FILLED)
    assert looks(node) == [f"look at {TARGET}"] * 2


async def test_a_hung_volume_keeps_nobody_else_from_an_answer(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.hanging[TARGET] = []
    hung = asyncio.create_task(at(node))
    await asyncio.sleep(0)
    began = now()
    await node.publishing.publish(publication(volume(), OTHER))
    node.host.plug("vdc", serial="fedcba9876543210fedc")
    node.host.mount_elsewhere(node.host.disks["vdc"], "/kubelet/pods/c")
    assert await node.usage.at("/kubelet/pods/c", volume_id="pvc-2") == Finding(figures=FILLED)
    assert now() == began
    await hung


async def test_a_path_that_is_mounted_anew_is_looked_at_though_the_old_mount_hangs(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.hanging[TARGET] = []
    await at(node)
    await node.unpublish(TARGET)
    del node.host.hanging[TARGET]
    await node.publishing.publish(publication(volume(), TARGET))
    assert await at(node) == Finding(figures=FILLED)


async def test_looks_that_hang_do_not_use_up_the_threads_of_the_process(node: FakeNode) -> None:
    host = node.host
    node.usage = VolumeUsage(mounts=host, places=host, usage=host, health=VolumeHealth(), records=host, most_looks=2)
    paths = [f"/kubelet/pods/{pod}" for pod in "abc"]
    for path in paths:
        await node.publishing.publish(publication(volume(), path))
        node.host.hanging[path] = []
    for path in paths[:2]:
        assert reasons(await at(node, path)) == [Reason.NOT_RESPONDING]
    with pytest.raises(Unavailable, match="2 other mounts of this node do not answer"):
        await at(node, paths[2])
    node.host.answer(paths[0])
    assert reasons(await at(node, paths[2])) == [Reason.NOT_RESPONDING]


async def test_what_a_look_finds_is_told_with_the_figures(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.host.ailments[TARGET] = [Ailment(Severity.DEGRADED, Reason.FILE_SYSTEM_ERRORS, "3 errors")]
    found = await at(node)
    assert found.figures == FILLED
    assert reasons(found) == [Reason.FILE_SYSTEM_ERRORS]


async def test_a_file_system_that_became_read_only_is_abnormal_at_every_path(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    await node.publishing.publish(publication(volume(), OTHER, read_only=True))
    assert (await at(node)).ailments == (await at(node, OTHER)).ailments == ()
    node.host.show_as("ro", TARGET)
    assert reasons(await at(node)) == reasons(await at(node, OTHER)) == [Reason.FILE_SYSTEM_READ_ONLY]


async def test_what_other_operations_report_is_told_too(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    node.health.note(
        "pvc-1", source="growth", ailments=[Ailment(Severity.DEGRADED, Reason.GROWTH_FAILED, "resize2fs failed")]
    )
    assert reasons(await at(node)) == [Reason.GROWTH_FAILED]


async def test_health_is_asked_for_at_the_first_path_where_the_volume_is_mounted(node: FakeNode) -> None:
    await node.staging.stage(volume())
    node.host.ailments[STAGING] = [Ailment(Severity.INACCESSIBLE, Reason.IO_ERROR, "no")]
    found = await node.usage.ailments("pvc-1", paths=[TARGET, STAGING])
    assert [ailment.reason for ailment in found] == [Reason.IO_ERROR]


async def test_health_of_a_volume_that_could_not_be_staged_says_why(node: FakeNode) -> None:
    del node.host.disks["vdb"]
    with pytest.raises(Unavailable), node.health.staging("pvc-1"):
        await node.staging.stage(volume())
    [ailment] = await node.usage.ailments("pvc-1", paths=[STAGING])
    assert ailment.reason is Reason.STAGING_FAILED
    assert SERIAL in ailment.message


async def test_health_of_a_volume_that_was_used_here_and_is_not_mounted_is_normal(node: FakeNode) -> None:
    await node.staging.stage(volume(block=True))
    assert await node.usage.ailments("pvc-1", paths=[STAGING]) == ()


async def test_health_of_a_volume_that_was_never_here_is_not_found(node: FakeNode) -> None:
    with pytest.raises(NotFound, match="never used here"):
        await node.usage.ailments("pvc-9", paths=[])
