"""The runner of programs, with real programs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kubevirt_csi.errors import Internal, Unavailable
from kubevirt_csi.host.commands import OUTPUT_LIMIT_BYTES, Commands


@pytest.fixture
def commands() -> Commands:
    return Commands(search_path=os.environ["PATH"])


async def test_any_exit_code_is_a_result(commands: Commands) -> None:
    finished = await commands.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (finished.code, finished.output, finished.errors) == (3, "out\n", "err\n")
    assert str(finished) == "sh ended with 3: err"


async def test_arguments_reach_the_program_without_a_shell(commands: Commands) -> None:
    finished = await commands.run("printf", "%s", "$(id); a b")
    assert finished.output == "$(id); a b"


async def test_a_program_that_is_missing_is_named(commands: Commands) -> None:
    with pytest.raises(Internal, match=r"program mkfs\.none is missing"):
        await commands.run("mkfs.none")
    with pytest.raises(Internal, match=r"program mkfs\.none is missing"):
        await commands.run_to_end("mkfs.none")
    assert commands.missing("sh", "mkfs.none") == ("mkfs.none",)


async def test_at_its_deadline_a_program_is_killed_with_its_children_and_reaped(
    commands: Commands, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(Unavailable, match=r"sh did not end within 0\.5 s"):
        await commands.run("sh", "-c", f"sleep 60 & echo $! $$ > {pids}; wait", timeout=0.5)
    child, shell = (int(pid) for pid in pids.read_text().split())
    assert not _running(shell)
    assert not _running(child)


async def test_a_cancelled_call_kills_and_reaps_its_program(commands: Commands, tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    task = asyncio.create_task(commands.run("sh", "-c", f"echo $$ > {fifo}; sleep 60"))
    pid = int(await asyncio.to_thread(fifo.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _running(pid)


async def test_a_call_that_is_cancelled_while_its_program_starts_leaves_nothing_running(
    commands: Commands, tmp_path: Path
) -> None:
    for turns in range(12):
        pids = tmp_path / f"pids-{turns}"
        task = asyncio.create_task(commands.run("sh", "-c", f"echo $$ > {pids}; sleep 60 & wait"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not pids.exists() or not pids.read_text() or not _running(int(pids.read_text()))


async def test_output_without_end_is_cut_and_does_not_block_the_program(commands: Commands) -> None:
    script = f"yes | head -c {3 * OUTPUT_LIMIT_BYTES}"
    assert len((await commands.run("sh", "-c", script)).output) == OUTPUT_LIMIT_BYTES
    assert len((await commands.run_to_end("sh", "-c", script)).output) == OUTPUT_LIMIT_BYTES


async def test_a_program_that_must_not_be_cut_in_half_ends_before_its_cancelled_caller(
    commands: Commands, tmp_path: Path
) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    os.mkfifo(go)
    task = asyncio.create_task(commands.run_to_end("sh", "-c", f"cat {go}; echo done > {done}"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    assert not task.done()
    await asyncio.to_thread(go.write_text, "")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.exists()


def test_the_end_of_the_event_loop_waits_for_a_program_that_must_not_be_cut_in_half(tmp_path: Path) -> None:
    done = tmp_path / "done"

    async def leave_behind() -> None:
        commands = Commands(search_path=os.environ["PATH"])
        task = asyncio.create_task(commands.run_to_end("sh", "-c", f"sleep 0.3; echo done > {done}"))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leave_behind())
    assert done.exists()


async def test_both_outputs_and_the_code_of_a_program_run_to_its_end_are_kept(commands: Commands) -> None:
    finished = await commands.run_to_end("sh", "-c", "echo out; echo err >&2; exit 4")
    assert (finished.code, finished.output) == (4, "out\nerr\n")


def _running(pid: int) -> bool:
    """A process that was killed but not yet reaped by its new parent does not count."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
