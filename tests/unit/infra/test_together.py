"""One read for all who ask at the same moment, and none of it for those who ask later."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.infra.together import Together


class Source:
    """Counts its reads; each takes a second and gives the count at its beginning, or raises what it is told to."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    async def read(self, name: str) -> str:
        self.reads += 1
        found = f"{name} {self.reads}"
        await asyncio.sleep(1.0)
        if self.error is not None:
            raise self.error
        return found


pytestmark = pytest.mark.looptime


async def test_who_asks_at_the_same_moment_shares_a_read() -> None:
    source = Source()
    together = Together(source.read)
    assert await asyncio.gather(*(together.read("vm1") for _ in range(15))) == ["vm1 1"] * 15
    assert source.reads == 1


async def test_who_asks_after_a_read_has_begun_gets_one_that_begins_later() -> None:
    together = Together(Source().read)
    first = asyncio.create_task(together.read("vm1"))
    await asyncio.sleep(0.5)
    assert await together.read("vm1") == "vm1 2"
    assert await first == "vm1 1"


async def test_different_names_are_different_reads() -> None:
    together = Together(Source().read)
    assert await asyncio.gather(*(together.read(name) for name in ("vm1", "vm2"))) == ["vm1 1", "vm2 2"]


async def test_a_caller_that_goes_does_not_take_the_read_along() -> None:
    together = Together(Source().read)
    first, second = (asyncio.create_task(together.read("vm1")) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == "vm1 1"


async def test_all_are_told_what_went_wrong() -> None:
    source = Source()
    source.error = OSError("broken")
    together = Together(source.read)
    results = await asyncio.gather(*(together.read("vm1") for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["broken"] * 3
