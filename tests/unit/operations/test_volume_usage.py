"""Stats: of what is mounted, and NotFound for all else."""

from __future__ import annotations

import pytest

from kubevirt_csi.errors import NotFound
from tests.fakes.host import MIB, FakeHost
from tests.fakes.node import SERIAL, FakeNode, publication, volume

TARGET = "/kubelet/pods/a"


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(FakeHost(), disk_wait_seconds=0.0)
    node.host.plug("vdb", serial=SERIAL)
    return node


async def test_a_mounted_volume_tells_bytes_and_inodes(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(), TARGET))
    assert await node.usage.at(TARGET) == await node.host.file_system(TARGET)


async def test_a_raw_volume_tells_its_size(node: FakeNode) -> None:
    await node.publishing.publish(publication(volume(block=True), TARGET))
    assert await node.usage.at(TARGET) == 8 * MIB


@pytest.mark.parametrize("path", ["some/path", "/nowhere", "/kubelet/pods"])
async def test_where_nothing_is_mounted_no_volume_is_found(node: FakeNode, path: str) -> None:
    node.host.folders.add("/kubelet/pods")
    with pytest.raises(NotFound):
        await node.usage.at(path)
