"""Programs are started, watched and surely ended; shells stand for the programs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.lab.processes import Process, ProcessError, Processes, Program, run_to_end

DEADLINE_SECONDS = 10.0


def shell(script: str, tmp_path: Path, *, name: str = "shell") -> Program:
    return Program(name=name, argv=["sh", "-c", script], log=tmp_path / f"{name}.log")


async def says(process: Process, text: str) -> None:
    """Waits until the program has written the text into its log."""

    async def said() -> bool:
        return text in process.log_tail()

    await process.ready(said, deadline_seconds=DEADLINE_SECONDS)


@pytest.fixture
async def processes() -> AsyncIterator[Processes]:
    async with Processes() as running:
        yield running


async def never() -> bool:
    return False


async def test_a_program_is_ready_when_its_probe_says_so(processes: Processes, tmp_path: Path) -> None:
    answers = iter([False, False, True])

    async def probe() -> bool:
        return next(answers)

    process = await processes.start(shell("sleep 60", tmp_path), ready=probe)
    assert process.alive
    assert next(answers, None) is None


async def test_an_early_death_is_an_error_with_the_end_of_the_log(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"(?s)shell \(pid \d+\) ended with 3;.*no such port"):
        await processes.start(shell("echo no such port >&2; exit 3", tmp_path), ready=never)


async def test_a_program_that_is_not_ready_in_time_is_an_error_and_still_ended(tmp_path: Path) -> None:
    async with Processes() as running:
        with pytest.raises(ProcessError, match=r"was not ready after 0.2 s"):
            await running.start(shell("sleep 60", tmp_path), ready=never, deadline_seconds=0.2)
        process = running["shell"]
    assert not process.alive


async def test_a_program_that_is_missing_ends_with_its_name_in_the_error(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"(?s)ended with 127.*no-such-program"):
        await processes.start(Program(name="x", argv=["no-such-program"], log=tmp_path / "x.log"), ready=never)


async def test_stop_lets_a_program_end_in_its_own_way(processes: Processes, tmp_path: Path) -> None:
    process = await processes.start(shell("trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done", tmp_path))
    await says(process, "up")
    assert await processes.stop("shell") == 7


async def test_stop_kills_a_program_that_ignores_the_signal(processes: Processes, tmp_path: Path) -> None:
    process = await processes.start(shell("trap '' TERM; echo up; while :; do sleep 0.05; done", tmp_path))
    await says(process, "up")
    assert await processes.stop("shell", grace_seconds=0.2) == -signal.SIGKILL


async def test_children_of_a_program_end_with_it(processes: Processes, tmp_path: Path) -> None:
    process = await processes.start(shell("sleep 60 & echo child $!; wait", tmp_path))
    await says(process, "child")
    child = os.pidfd_open(int(process.log_tail().split()[1]))
    try:
        await processes.kill("shell")
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(child, gone.set)
        await asyncio.wait_for(gone.wait(), DEADLINE_SECONDS)
    finally:
        asyncio.get_running_loop().remove_reader(child)
        os.close(child)


async def test_programs_are_stopped_in_reverse_order(tmp_path: Path) -> None:
    order = tmp_path / "order"
    async with Processes() as running:
        for name in ("first", "second"):
            script = f"trap 'echo {name} >> {order}; exit' TERM; echo up; while :; do sleep 0.05; done"
            await says(await running.start(shell(script, tmp_path, name=name)), "up")
    assert order.read_text().split() == ["second", "first"]


async def test_watch_reports_a_death_that_nobody_asked_for(processes: Processes, tmp_path: Path) -> None:
    await processes.start(shell("sleep 60", tmp_path, name="steady"))
    process = await processes.start(shell("sleep 60", tmp_path, name="victim"))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ProcessError, match=r"victim \(pid \d+\) ended with -9"):
        await asyncio.wait_for(processes.watch(poll_seconds=0.01), DEADLINE_SECONDS)


async def test_watch_says_nothing_of_a_program_that_was_stopped(processes: Processes, tmp_path: Path) -> None:
    looks = 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            await processes.stop("shell")
        if looks == 4:
            raise StopAsyncIteration

    await processes.start(shell("sleep 60", tmp_path))
    with pytest.raises(StopAsyncIteration):
        await processes.watch(pause=pause)


async def test_a_name_is_free_again_after_a_stop(processes: Processes, tmp_path: Path) -> None:
    await processes.start(shell("sleep 60", tmp_path))
    with pytest.raises(ProcessError, match="shell runs already"):
        await processes.start(shell("sleep 60", tmp_path))
    await processes.stop("shell")
    assert (await processes.start(shell("sleep 60", tmp_path))).alive


async def test_a_program_that_ends_by_itself_is_waited_for(tmp_path: Path) -> None:
    await run_to_end(shell(f"touch {tmp_path}/done", tmp_path), seconds=30)
    assert (tmp_path / "done").exists()


async def test_a_program_that_ends_badly_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"(?s)shell ended with 3: .*no such disk"):
        await run_to_end(shell("echo no such disk >&2; exit 3", tmp_path), seconds=30)


async def test_a_program_that_does_not_end_in_time_is_an_error_and_killed(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"shell did not end within 1 s"):
        await run_to_end(shell(f"echo $$ > {tmp_path}/pid; exec sleep 60", tmp_path), seconds=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_process_can_be_ended_from_another_event_loop(tmp_path: Path) -> None:
    process = asyncio.run(started(shell("sleep 60", tmp_path)))
    assert asyncio.run(process.kill()) == -signal.SIGKILL


async def started(program: Program) -> Process:
    return Process.start(program)
