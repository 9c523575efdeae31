from __future__ import annotations

import asyncio

from kubevirt_csi.observe import context


def test_outside_a_call_reports_go_nowhere() -> None:
    context.mark_written()
    context.progress("nothing")


async def test_a_task_started_by_a_call_reports_to_it() -> None:
    work = context.Work()

    async def child() -> None:
        context.mark_written()
        context.progress("the disk")

    async def call() -> None:
        context.begin(work)
        await asyncio.create_task(child())

    await asyncio.create_task(call())
    assert work == context.Work(written=True, waiting_for="the disk")


async def test_two_calls_do_not_hear_each_other() -> None:
    first, second = context.Work(), context.Work()

    async def call(work: context.Work, text: str) -> None:
        context.begin(work)
        context.progress(text)

    await asyncio.gather(asyncio.create_task(call(first, "a")), asyncio.create_task(call(second, "b")))
    assert (first.waiting_for, second.waiting_for) == ("a", "b")
