from __future__ import annotations

import asyncio
import gc

import pytest

from kubevirt_csi.infra.changes import Changes


async def test_a_change_between_taking_and_awaiting_is_not_missed() -> None:
    changes = Changes()
    awaitable = changes.after_now("a")
    changes.announce("a")
    await awaitable


async def test_every_waiter_is_woken_and_others_are_not() -> None:
    changes = Changes()
    first, second = asyncio.ensure_future(changes.after_now("a")), asyncio.ensure_future(changes.after_now("a"))
    other = asyncio.ensure_future(changes.after_now("b"))
    await asyncio.sleep(0)
    changes.announce("a")
    await asyncio.gather(first, second)
    assert not other.done()
    changes.announce_all()
    await other


async def test_a_change_before_the_wait_began_does_not_count() -> None:
    changes = Changes()
    changes.announce("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await changes.after_now("a")


async def test_dropped_waits_leave_nothing_behind() -> None:
    changes = Changes()
    taken = [changes.after_now(f"volume-{number}") for number in range(100)]
    assert len(changes._events) == 100
    taken.clear()
    gc.collect()
    assert len(changes._events) == 0


async def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    changes = Changes()
    first, second = asyncio.ensure_future(changes.after_now("a")), asyncio.ensure_future(changes.after_now("a"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    changes.announce("a")
    await second
