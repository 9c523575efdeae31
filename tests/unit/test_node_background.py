"""The node role's background tasks: they end with the process, and the process ends with them."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from kubevirt_csi.node import background as background_of
from kubevirt_csi.node import until_terminated
from kubevirt_csi.settings import NodeSettings
from kubevirt_csi.settings.arguments import parse
from tests.fakes.host import FakeHost
from tests.fakes.node import SERIAL, STAGING, FakeNode, volume

pytestmark = pytest.mark.looptime


class Background:
    """A task that runs for ever, or until a defect shows."""

    def __init__(self, *, dies_after: float | None = None) -> None:
        self.dies_after = dies_after
        self.cancelled = False

    async def run(self) -> NoReturn:
        try:
            await asyncio.sleep(self.dies_after if self.dies_after is not None else 1e9)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise ZeroDivisionError


async def test_background_tasks_end_when_the_process_is_told_to() -> None:
    terminated, background = asyncio.Event(), Background()
    asyncio.get_running_loop().call_later(10, terminated.set)
    await until_terminated(terminated, background=[background.run()])
    assert background.cancelled


async def test_a_background_task_that_dies_ends_the_process_with_its_error() -> None:
    with pytest.raises(ExceptionGroup) as died:
        await until_terminated(asyncio.Event(), background=[Background(dies_after=5).run(), Background().run()])
    assert died.group_contains(ZeroDivisionError)


async def test_without_background_tasks_the_process_waits_to_be_told() -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().call_later(10, terminated.set)
    await until_terminated(terminated, background=[])


def settings(*arguments: str, **environment: str) -> NodeSettings:
    chosen = parse(["node", *arguments], environment)[1]
    assert isinstance(chosen, NodeSettings)
    return chosen


async def test_volumes_are_trimmed_as_often_as_the_operator_says() -> None:
    node, terminated = FakeNode(FakeHost(), disk_wait_seconds=0.0), asyncio.Event()
    node.host.plug("vdb", serial=SERIAL)
    await node.staging.stage(volume())
    asyncio.get_running_loop().call_later(3 * 3600, terminated.set)
    hourly = settings("--fstrim-interval=1h")
    await until_terminated(terminated, background=background_of(hourly, node.trimming))
    assert node.host.calls.count(f"trim {STAGING}") == 3


@pytest.mark.parametrize("environment", [{}, {"KUBEVIRT_CSI_FSTRIM_INTERVAL": "0"}], ids=["unset", "zero"])
def test_nothing_is_trimmed_unless_the_operator_says_so(environment: dict[str, str]) -> None:
    assert background_of(settings(**environment), FakeNode().trimming) == []
