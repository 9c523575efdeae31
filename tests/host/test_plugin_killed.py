"""Crash schedules: the plug-in is killed at every change that it makes in a volume's life, by a program or by itself.

The changes are counted in a life that nobody disturbs, so a new program or a new write is a new kill point by itself.
After each kill a new plug-in goes on: the call is repeated, or everything is undone and done anew as on another node,
which remembers nothing. What a pod had written must be there, a format has run under our mark only and never after a
mount, and no mount is left over.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.access import FILE_SYSTEMS
from tests.host.lives import KINDS, SECOND_HALF, UNDO, Do, Kind, LivingVolume, formats, left_behind, life
from tests.host.machine import machine
from tests.host.mortal import NEVER, Kill, MortalPlugin

CHAINS = 2
CUTS = (0.0, 0.004, 0.01, 0.03)
"""Seconds after which a program that must not be cut in half is killed together with the plug-in."""
NEVER_CUT = ("mkfs", "fsck", "resize2fs", "btrfs", "xfs_growfs")


class Recovery(Enum):
    """What kubelet does when the plug-in is back."""

    REPEATED = "the call is repeated"
    UNDONE = "everything is undone, and done anew on a node that knows nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One kill in one life."""

    number: int
    kind: Kind
    kill: Kill
    change: str
    recovery: Recovery

    def __str__(self) -> str:
        return f"{self.kind.name}, {self.kill} ({self.change}), then {self.recovery.value}"


def kinds() -> list[Kind]:
    """Those that this driver knows."""
    return [kind for kind in KINDS if not kind.fs_type or kind.fs_type in FILE_SYSTEMS]


def schedules(kind: Kind, changes: list[str], numbers: Iterator[int]) -> Iterator[Schedule]:
    """Every change of the life, killed at in every way; before and after it, with either recovery in turns.

    What is there after a change is also there before the next one, so both recoveries follow every state of the node.
    """
    for point, change in enumerate(changes, start=1):
        kills = [Kill(point=point, moment="before"), Kill(point=point, moment="after")]
        if change.startswith(NEVER_CUT):
            kills += [Kill(point=point, moment="within", cut=cut) for cut in CUTS]
        for kill, recovery in zip(kills, itertools.cycle(Recovery), strict=False):
            yield Schedule(number=next(numbers), kind=kind, kill=kill, change=change, recovery=recovery)


class Run:
    """One schedule on one machine."""

    def __init__(self, plugin: MortalPlugin, schedule: Schedule, *, expands: bool) -> None:
        self.plugin = plugin
        self.schedule = schedule
        self.volume = LivingVolume(plugin.machine, schedule.kind, number=schedule.number)
        self.steps = life(schedule.kind, expands=expands)

    async def to_its_end(self) -> None:
        """Lives, dies at the point, goes on, and checks.

        Raises:
            AssertionError: something was lost, formatted or left over.
        """
        self.plugin.desk.arm(self.schedule.kill, volume_id=self.volume.volume_id)
        died_at = await self._until_killed()
        self.plugin.desk.disarm()
        await self.plugin.start()
        for step in self._rest(died_at):
            await self._do(step)
        assert self.volume.written, "the pod has written nothing"
        self.check()

    def check(self) -> None:
        """What must be true at the end of every life."""
        assert formats(self.plugin.desk.calls(), self.volume.disk) == []
        assert left_behind(self.plugin.machine) == []
        assert self.plugin.mounts_of_its_own() == []
        assert list((self.plugin.machine.state / "mounts").iterdir()) == []
        assert not self.volume.target.exists()

    async def _until_killed(self) -> int:
        for position, step in enumerate(self.steps):
            try:
                await self._do(step)
            except (OSError, StreamTerminatedError):
                assert step.is_call, f"{step.value} failed"
                assert await self.plugin.dead(), f"{step.value} was cut off, but nobody is dead"
                return position
        raise AssertionError(f"the life of {len(self.plugin.desk.points())} changes ended before its kill point")

    def _rest(self, died_at: int) -> Iterator[Do]:
        if self.schedule.recovery is Recovery.REPEATED:
            yield from self.steps[died_at:]
            return
        yield from UNDO
        self.volume.forget()
        yield from SECOND_HALF

    async def _do(self, step: Do) -> None:
        async with self.plugin.node() as node:
            try:
                await self.volume.do(step, node)
            except GRPCError as error:
                raise AssertionError(f"{step.value} answered {error.status.name}: {error.message}") from error


@asynccontextmanager
async def mortal_plugin() -> AsyncIterator[MortalPlugin]:
    """A plug-in on a machine of its own."""
    with tempfile.TemporaryDirectory(prefix="node-") as folder, machine(Path(folder) / "n") as made:
        plugin = MortalPlugin(made)
        await plugin.start()
        try:
            yield plugin
        finally:
            await plugin.end()


async def can_expand(plugin: MortalPlugin) -> bool:
    async with plugin.node() as node:
        answer = await node.node_get_capabilities(csi.NodeGetCapabilitiesRequest())
    kinds = [capability.rpc.type for capability in answer.capabilities if capability.rpc is not None]
    return csi.NodeServiceCapabilityRpcType.EXPAND_VOLUME in kinds


async def undisturbed(plugin: MortalPlugin, kind: Kind, *, number: int, expands: bool) -> list[str]:
    """The changes of a life without a kill, which must come right too."""
    schedule = Schedule(number=number, kind=kind, kill=NEVER, change="none", recovery=Recovery.REPEATED)
    run = Run(plugin, schedule, expands=expands)
    plugin.desk.arm(NEVER, volume_id=run.volume.volume_id)
    for step in run.steps:
        await run._do(step)
    changes = plugin.desk.points()
    plugin.desk.disarm()
    run.check()
    run.volume.leave()
    return changes


async def chain(table: Iterable[Schedule], failures: list[str], *, expands: bool) -> None:
    """One schedule after another, from a table that others take from too: who is killed in one begins the next anew."""
    async with mortal_plugin() as plugin:
        for schedule in table:
            run = Run(plugin, schedule, expands=expands)
            try:
                await run.to_its_end()
                run.volume.leave()
            except (AssertionError, OSError, RuntimeError) as error:
                failures.append(f"{schedule}: {error}")
                return  # this machine is not as it should be


@pytest.mark.timeout(600)
async def test_a_plugin_that_is_killed_at_any_change_loses_nothing(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    numbers = itertools.count(1)
    table: list[Schedule] = []
    async with mortal_plugin() as plugin:
        expands = await can_expand(plugin)
        for kind in kinds():
            changes = await undisturbed(plugin, kind, number=next(numbers), expands=expands)
            table += schedules(kind, changes, numbers)
    failures: list[str] = []
    todo = iter(table)
    async with asyncio.TaskGroup() as group:
        for _ in range(CHAINS):
            group.create_task(chain(todo, failures, expands=expands))
    record_property("schedules", len(table))
    with capsys.disabled():
        print(f"\nkill points of the node: {len(table)} schedules, {len(failures)} failures")  # noqa: T201 - its report
    assert not failures, json.dumps(failures, indent=1)
