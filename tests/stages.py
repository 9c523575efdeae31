"""Runs the test stages one after another and says of each in one line how it went and how long it took.

``python -m tests.stages check`` is the quick part, ``all`` everything. The slow builds (Go programs, guest image) run
beside the first stages, which do not need them, and tiers beside each other that leave one another a processor. The
output of each stage goes to ``logs/STAGE.log``; of a stage that failed the end is shown. The first failure of a quick
stage ends the run; the tiers all run, since each tells something.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "logs"
TAIL_LINES = 60
END_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A named command with its deadline in seconds."""

    name: str
    command: tuple[str, ...]
    timeout: float
    tests: bool = False

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return LOGS / f"{self.name}.log"

    @property
    def report(self) -> Path:
        """Where pytest counts its tests."""
        return LOGS / f"{self.name}.xml"

    @property
    def arguments(self) -> list[str]:
        """The command as it is run."""
        return [*self.command, f"--junit-xml={self.report}"] if self.tests else list(self.command)


def python(*arguments: str) -> tuple[str, ...]:
    """A command in this interpreter's environment."""
    return (sys.executable, "-m", *arguments)


def pytest(name: str, *arguments: str, timeout: float) -> Stage:
    """A stage of tests."""
    return Stage(name=name, command=python("pytest", "-q", *arguments), timeout=timeout, tests=True)


BUILDS = (
    Stage(name="tools", command=python("e2e.tools.build"), timeout=2400),
    Stage(name="images", command=python("e2e.lab.images"), timeout=2400),
)
CHECK = (
    Stage(name="lint", command=python("ruff", "check", "."), timeout=120),
    Stage(name="format", command=python("ruff", "format", "--check", "."), timeout=120),
    # Its cache goes by content: a clean checkout is checked as quickly as one that was changed a little.
    Stage(name="types", command=python("mypy", f"--cache-dir={cache_root() / 'mypy'}"), timeout=600),
    Stage(name="imports", command=(str(Path(sys.executable).parent / "lint-imports"),), timeout=120),
    pytest("unit", "-n", "2", "tests/unit", "tests/properties", "tests/architecture", timeout=600),
)
KILLED = "tests/api/standin/test_controller_killed.py"
GUEST = pytest("guest", "tests/guest", timeout=1200)
HOST = pytest("host", "tests/host", timeout=1200)
SANITY = Stage(name="sanity", command=python("e2e.sanity"), timeout=900)
# Files side by side: each worker has clusters of its own, and much of the time they wait for what they do.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile", "--timeout=240")
API = pytest("api", *SIDE_BY_SIDE, "tests/api", f"--ignore={KILLED}", timeout=1200)
LAB = pytest("lab", "tests/lab", timeout=900)
KILLS = pytest("kills", KILLED, timeout=900)
E2E = pytest("e2e", "e2e/suites", timeout=1800)
TIERS = (
    # A guest that computes, on one processor; beside it what mounts and formats on the host, on the other.
    [[GUEST], [HOST, SANITY]],
    [[API]],
    # Labs that start and end, which is mostly waiting; beside them a controller that starts and ends.
    [[LAB], [KILLS]],
    [[E2E]],
)
"""The groups run one after another, the lanes of a group side by side, and the stages of a lane one after another."""
TESTS = [*CHECK, *(stage for group in TIERS for lane in group for stage in lane)]


async def run(stage: Stage) -> bool:
    """Runs the stage to its end and prints its line, and the tail of its log when it failed."""
    since = time.monotonic()
    code = None
    with stage.log.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *stage.arguments, cwd=ROOT, stdout=log, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(stage.timeout):
                code = await process.wait()
        except TimeoutError:
            log.write(f"\nended after {stage.timeout:.0f} s, the stage's limit\n".encode())
        finally:
            await end(process)
    return tell(stage, passed=code == 0, seconds=time.monotonic() - since)


async def end(process: asyncio.subprocess.Process) -> None:
    """Ends it as the interrupt key would, so that it cleans up; kills what does not end by that."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def tell(stage: Stage, *, passed: bool, seconds: float) -> bool:
    """One line a stage."""
    print(f"{stage.name:<8} {'ok' if passed else 'FAILED':<7} {seconds:7.1f} s", flush=True)
    if not passed:
        lines = stage.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        print("\n".join([f"--- end of {stage.log.relative_to(ROOT)}", *lines, "---"]), flush=True)
    return passed


def counted(stages: Sequence[Stage]) -> str:
    """The closing line: how many tests passed, failed and were skipped in all stages that ran."""
    total = failed = skipped = 0
    for stage in stages:
        if not stage.tests or not stage.report.exists():
            continue
        for suite in ET.parse(stage.report).getroot().iter("testsuite"):  # noqa: S314 - written by our own pytest
            total += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    return f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped"


async def run_check() -> bool:
    """The quick stages, up to the first that fails."""
    for stage in CHECK:
        if not await run(stage):
            return False
    return True


async def run_all() -> bool:
    """The builds beside the quick stages, then the tiers."""
    builds = [asyncio.create_task(run(stage)) for stage in BUILDS]
    try:
        if not await run_check() or not all(await asyncio.gather(*builds)):
            return False
    finally:
        for build in builds:
            build.cancel()
        await asyncio.gather(*builds, return_exceptions=True)
    passed = []
    for group in TIERS:
        for lane in await asyncio.gather(*map(run_lane, group)):
            passed += lane
    return all(passed)


async def run_lane(lane: Sequence[Stage]) -> list[bool]:
    """Runs its stages one after another, also when one fails; says of each whether it passed."""
    return [await run(stage) for stage in lane]


async def until_signalled(work: Coroutine[None, None, bool]) -> bool:
    """The result of the work; SIGTERM and SIGINT end it, and what it has started with it."""
    task = asyncio.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        print("ended by a signal", flush=True)
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen stages; the exit code is 0 when all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.stages", description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=("check", "all"))
    which = parser.parse_args(arguments).which
    LOGS.mkdir(exist_ok=True)
    for old in LOGS.iterdir():
        old.unlink()
    started = time.monotonic()
    passed = asyncio.run(until_signalled(run_check() if which == "check" else run_all()))
    print(f"{'all ok' if passed else 'FAILED'} after {time.monotonic() - started:.0f} s, logs in {LOGS}")
    print(counted(TESTS))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
