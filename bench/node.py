"""``python -m bench.node``: what the node plug-in costs on this machine, as root, on loop devices.

Measured are its start until it serves with compiled byte code, what staging and publishing of a formatted disk takes
over the time of the programs that it runs, and its memory after a thousand calls. The programs are timed by running the
same ones, with the same arguments, from a shell. The last line is JSON; the exit code is 1 when a goal is missed.
Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from kubevirt_csi._csi.csi import v1 as csi
from tests.host.footprint import resident_over, slope_kib
from tests.host.lives import KINDS, Do, LivingVolume
from tests.host.machine import enter_private_mount_namespace, machine
from tests.host.mortal import NEVER, MortalPlugin

STARTS = 15
SAMPLES = 30
CALLS = 2000
GOALS = {"start_ms": 300.0, "added_ms": 30.0, "resident_mib": 44.0, "slope_kib_per_1000_calls": 256.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds until the plug-in served: on the clock, and of the processor."""

    wall: float
    processor: float


@asynccontextmanager
async def plugin_on_a_machine(*, counted: bool = False) -> AsyncIterator[MortalPlugin]:
    """A plug-in that has not been started, on a machine of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, machine(Path(folder) / "n") as made:
        plugin = MortalPlugin(made, counted=counted)
        try:
            yield plugin
        finally:
            await plugin.end()


async def starts() -> list[Start]:
    """Many starts."""
    found = []
    async with plugin_on_a_machine() as plugin:
        await plugin.compile()
        for _ in range(STARTS):
            begin = time.monotonic()
            await plugin.start()
            wall = time.monotonic() - begin
            found.append(Start(wall=wall, processor=plugin.processor_seconds()))
            await plugin.end()
    return found


async def programs_of(calls: Sequence[Do]) -> list[list[str]]:
    """The programs that the plug-in runs for these calls on a disk that is formatted already."""
    async with plugin_on_a_machine(counted=True) as plugin:
        await plugin.start()
        volume = LivingVolume(plugin.machine, KINDS[0], number=1)
        async with plugin.node() as node:
            await format_and_leave(volume, node)
            plugin.desk.arm(NEVER, volume_id=volume.volume_id)
            for call in calls:
                await volume.do(call, node)
            ran = plugin.desk.calls()
            plugin.desk.disarm()
            for call in (Do.UNPUBLISH, Do.UNSTAGE):
                await volume.do(call, node)
        root = str(plugin.machine.root)
    return [[word.replace(root, "@") for word in words if word] for words in ran]


async def format_and_leave(volume: LivingVolume, node: csi.NodeStub) -> None:
    """A first life."""
    for call in (Do.STAGE, Do.PUBLISH, Do.WRITE, Do.UNPUBLISH, Do.UNSTAGE):
        await volume.do(call, node)


def script(programs: Sequence[Sequence[str]], root: Path) -> str:
    """The programs one after another, on the machine below this folder."""
    return "\n".join(shlex.join(word.replace("@", str(root)) for word in words) for words in programs)


def timed(text: str) -> float:
    """Seconds that a shell takes for the script."""
    begin = time.monotonic()
    subprocess.run(["/bin/sh", "-e", "-c", text], check=True, capture_output=True, timeout=60)
    return time.monotonic() - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Seconds of one Stage and Publish: on the clock, of the plug-in's own processor time, of the programs alone."""

    wall: float
    processor: float
    programs: float


async def staging(programs: Sequence[Sequence[str]]) -> list[Staged]:
    """One disk again and again, by the plug-in and by a shell in turns."""
    found = []
    async with plugin_on_a_machine() as plugin:
        await plugin.start()
        volume = LivingVolume(plugin.machine, KINDS[0], number=1)
        text = script(programs, plugin.machine.root)
        async with plugin.node() as node:
            await format_and_leave(volume, node)
            for _ in range(SAMPLES):
                before, begin = plugin.processor_seconds(), time.monotonic()
                await volume.do(Do.STAGE, node)
                await volume.do(Do.PUBLISH, node)
                wall, processor = time.monotonic() - begin, plugin.processor_seconds() - before
                await volume.do(Do.UNPUBLISH, node)
                await volume.do(Do.UNSTAGE, node)
                volume.target.mkdir()
                alone = await asyncio.to_thread(timed, text) - await asyncio.to_thread(timed, ":")
                await volume.do(Do.UNPUBLISH, node)
                await volume.do(Do.UNSTAGE, node)
                found.append(Staged(wall=wall, processor=processor, programs=alone))
    return found


async def memory() -> dict[str, float]:
    """Over two thousand calls; how it grows in the second."""
    async with plugin_on_a_machine() as plugin:
        await plugin.start()
        samples = await resident_over(plugin, calls=CALLS)
    return {
        "resident_mib": round(max(sample.mebibytes for sample in samples), 1),
        "slope_kib_per_1000_calls": round(slope_kib(samples)),
    }


async def figures() -> dict[str, float]:
    """All of them."""
    began = await starts()
    programs = await programs_of((Do.STAGE, Do.PUBLISH))
    for words in programs:
        say("  " + " ".join(words)[:110])
    staged = await staging(programs)
    return {
        "start_ms": milliseconds([start.wall for start in began]),
        "start_processor_ms": milliseconds([start.processor for start in began]),
        "stage_and_publish_ms": milliseconds([one.wall for one in staged]),
        "programs_ms": milliseconds([one.programs for one in staged]),
        "added_ms": milliseconds([one.wall - one.programs for one in staged]),
        # Ticks of 10 ms: only their mean tells.
        "added_processor_ms": round(1000 * fmean(one.processor for one in staged), 1),
        **await memory(),
    }


def milliseconds(values: Sequence[float]) -> float:
    """The median of seconds."""
    return round(1000 * median(values), 1)


def missed(found: Mapping[str, float]) -> list[str]:
    """The goals that are not met, in words."""
    return [f"{name} is {found[name]:g}, the goal {goal:g}" for name, goal in GOALS.items() if found[name] > goal]


def say(text: str) -> None:
    """A line for a person."""
    print(text, flush=True)


def main() -> int:
    """Measures and prints; the exit code is 1 when a goal is missed."""
    if os.geteuid() != 0:
        say("error: loop devices and mounts need root")
        return 1
    enter_private_mount_namespace()
    found = asyncio.run(figures())
    wrong = missed(found)
    for text in wrong:
        say(f"MISSED: {text}")
    say(json.dumps(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
