"""Calls that may hang: they cost their caller a deadline, and nobody else anything."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.host import blocking
from kubevirt_csi.host.usage import HostUsage


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


async def test_a_path_that_has_not_answered_is_not_asked_again_and_others_are() -> None:
    usage, release, asked = HostUsage(seconds=0.01), Event(), []

    def hang() -> None:
        asked.append("dead")
        release.wait()

    with pytest.raises(Unavailable, match="did not finish"):
        await usage._ask("/dead", hang)
    with pytest.raises(Unavailable, match="earlier question"):
        await usage._ask("/dead", hang)
    assert asked == ["dead"]
    usage._seconds = 60
    assert (await usage.file_system("/")).total_bytes > 0
    release.set()
    while "/dead" in usage._asking:  # noqa: ASYNC110 - the thread's last step has no event
        await asyncio.sleep(0)
    await usage.file_system("/")
