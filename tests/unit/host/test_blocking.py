"""Calls that may hang: they cost their caller a deadline, and nobody else anything."""

from __future__ import annotations

from threading import Event, get_ident

import pytest

from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.host import blocking


async def test_results_and_errors_come_back() -> None:
    assert await blocking.call(lambda: 42, what="asking", timeout=60) == 42

    def fail() -> None:
        raise Internal("found nothing")

    with pytest.raises(Internal, match="found nothing"):
        await blocking.call(fail, what="asking", timeout=60)


async def test_an_error_of_the_system_becomes_ours_and_says_what_was_done() -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(Unavailable, match=r"reading /dev/vdb: .*Input/output error"):
        await blocking.call(fail, what="reading /dev/vdb", timeout=60)


async def test_a_call_that_hangs_is_given_up_while_others_go_on() -> None:
    release = Event()
    try:
        with pytest.raises(Unavailable, match="does its device still answer"):
            await blocking.call(release.wait, what="reading /dev/vdb", timeout=0.01)
        assert await blocking.call(lambda: 42, what="asking", timeout=60) == 42
    finally:
        release.set()


async def test_the_next_call_has_the_thread_of_one_that_is_done_and_not_of_one_that_hangs() -> None:
    async def thread() -> int:
        return await blocking.call(get_ident, what="asking", timeout=60)

    release = Event()
    hanging = blocking.start(lambda: (get_ident(), release.wait()), what="hanging")
    try:
        used = {await thread() for _ in range(20)}
    finally:
        release.set()
    hung, _ = await hanging
    assert hung not in used
    assert len(used) <= blocking.IDLE_THREADS
