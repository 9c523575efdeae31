"""Waiting: no change is missed, nothing is polled, and it ends."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kubevirt_csi.waiting import Notice, Pauses, attempts, until

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_change_that_comes_during_the_look_is_not_missed() -> None:
    notice, looks = Notice(), 0

    async def look() -> bool | None:
        nonlocal looks
        looks += 1
        notice.notify()
        return looks == 2 or None

    assert await until(look, changed=[notice.changed], seconds=100, look_again=50)
    assert now() < 1


async def test_any_of_several_changes_wakes() -> None:
    first, second = Notice(), Notice()
    asyncio.get_running_loop().call_later(3, second.notify)

    async def look() -> bool | None:
        return now() >= 3 or None

    assert await until(look, changed=[first.changed, second.changed], seconds=100, look_again=50)
    assert now() < 4


async def test_it_looks_again_after_a_while_although_nothing_changed() -> None:
    async def look() -> bool | None:
        return now() >= 7 or None

    assert await until(look, changed=[Notice().changed], seconds=100, look_again=5)
    assert now() == pytest.approx(10, abs=0.01)


async def test_it_gives_up_after_a_last_look() -> None:
    looked: list[float] = []

    async def look() -> bool | None:
        looked.append(now())
        return None

    assert await until(look, changed=[Notice().changed], seconds=12, look_again=5) is None
    assert looked[-1] == pytest.approx(12, abs=0.01)


async def test_an_error_of_the_look_ends_the_wait() -> None:
    async def look() -> bool | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await until(look, changed=[Notice().changed], seconds=12)


async def test_attempts_pause_ever_longer_between_and_not_after_them() -> None:
    times = [now() async for _ in attempts(6)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == 6
    assert all(0.05 * 2**n <= gap <= 0.11 * 2**n for n, gap in enumerate(gaps))
    assert now() == times[-1]


async def test_with_nothing_to_wake_it_it_looks_ever_less_often() -> None:
    looked: list[float] = []

    async def look() -> bool | None:
        looked.append(now())
        return None

    assert await until(look, changed=[], seconds=30, look_again=Pauses(first=1, longest=4)) is None
    gaps = [later - earlier for earlier, later in itertools.pairwise(looked)]
    assert all(0.5 * full <= gap <= full + 0.01 for gap, full in zip(gaps, [1, 2, 4, 4], strict=False))
    assert max(gaps) <= 4.01
    assert looked[-1] == pytest.approx(30, abs=0.01)


def test_pauses_start_again_from_the_first_when_an_attempt_got_somewhere() -> None:
    pauses = Pauses(first=1, longest=100)
    taken = [pauses.next() for _ in range(9)]
    pauses.reset()
    assert taken[-1] >= 50
    assert 0.5 <= pauses.next() <= 1
