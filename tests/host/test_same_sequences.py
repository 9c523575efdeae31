"""The fake host behaves as the kernel does: one sequence of calls and deaths, the same codes and mounts at each step.

The sequences are those of the state machine (tests/properties/test_node_machine.py), chosen by Hypothesis from the same
steps; here they are also sent to a plug-in on loop devices. What the fake host gets wrong would be wrong in every test
that believes it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import looptime
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.host.commands import Commands
from kubevirt_csi.node import worker
from kubevirt_csi.ports.host import Host
from tests.fakes.node_model import Model
from tests.fakes.sequences import KINDS, TARGETS, Do, Driver, FakeWorld, Mounted, Step, World, serial
from tests.host.machine import MIB, Machine, machine

SIZE = 32 * MIB
EXAMPLES = 12
LONGEST = 14

Outcome = tuple[Step, str, list[Mounted]]


class RealHost:
    """Every port on one machine, as one object, as the fake host is one."""

    def __init__(self, ports: Host) -> None:
        self._ports = tuple(getattr(ports, each.name) for each in fields(ports))

    def __getattr__(self, name: str) -> Any:
        for port in self._ports:
            if hasattr(port, name):
                return getattr(port, name)
        raise AttributeError(f"no port of the host has {name}")


class RealWorld:
    """A machine with a loop device for each volume."""

    def __init__(self, machine: Machine, ports: Host) -> None:
        self.host = RealHost(ports)
        self.root = str(machine.kubelet)
        self._machine = machine
        self._disks = [machine.plug(f"vd{volume}", serial=serial(volume), size=SIZE) for volume in range(len(KINDS))]
        self.shown: tuple[Disk, ...] = ()

    async def look(self) -> None:
        self.shown = await self.host.all()

    def disk(self, volume: int) -> Disk:
        return next(disk for disk in self.shown if disk.name == f"vd{volume}")

    def grow(self, volume: int) -> None:
        raise NotImplementedError("ext4 grows online with CAP_SYS_RESOURCE only; tests/guest does it")


async def outcomes(world: World, steps: list[Step]) -> list[Outcome]:
    """What each step was answered with, and what was mounted then."""
    driver = Driver(world)
    return [(step, await driver.send(step), sorted(await driver.mounts())) for step in steps]


def on_the_fake_host(steps: list[Step]) -> list[Outcome]:
    loop = looptime.new_event_loop(start=0)
    try:
        return loop.run_until_complete(outcomes(FakeWorld(size=SIZE), steps))
    finally:
        loop.close()


async def on_loop_devices(steps: list[Step]) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="node-") as folder, machine(Path(folder) / "n") as made:
        commands = Commands(search_path=os.environ["PATH"])
        ports = await worker(commands, sysfs_root=made.sysfs, dev_root=made.dev, state_dir=made.state)
        world = RealWorld(made, ports)
        await world.look()
        return await outcomes(world, steps)


volumes = st.sampled_from(range(len(KINDS)))
pods = st.sampled_from(TARGETS)
deaths = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8))
steps = st.one_of(
    st.builds(Step, do=st.just(Do.STAGE), volume=volumes, kill_at=deaths),
    st.builds(Step, do=st.just(Do.PUBLISH), volume=volumes, target=pods, read_only=st.booleans(), kill_at=deaths),
    st.builds(Step, do=st.just(Do.UNPUBLISH), volume=volumes, target=pods, kill_at=deaths),
    st.builds(Step, do=st.just(Do.UNSTAGE), volume=volumes, kill_at=deaths),
    st.builds(Step, do=st.just(Do.EXPAND), volume=volumes, target=st.sampled_from(("", *TARGETS)), kill_at=deaths),
)
whole_lives = [
    Step(do=do, volume=volume, target=target, read_only=read_only)
    for volume in range(len(KINDS))
    for do, target, read_only in (
        (Do.EXPAND, "", False),
        (Do.PUBLISH, "a", False),
        (Do.PUBLISH, "a", False),
        (Do.PUBLISH, "a", True),
        (Do.PUBLISH, "b", True),
        (Do.EXPAND, "a", False),
        (Do.EXPAND, "", False),
        (Do.STAGE, "", False),
        (Do.UNSTAGE, "", False),
        (Do.UNPUBLISH, "a", False),
        (Do.UNPUBLISH, "b", False),
        (Do.UNPUBLISH, "b", False),
        (Do.UNSTAGE, "", False),
        (Do.UNSTAGE, "", False),
    )
]
counted = {"sequences": 0, "steps": 0, "deaths": 0}


@pytest.mark.timeout(300)
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(sequence=st.lists(steps, min_size=LONGEST, max_size=LONGEST))
@example(sequence=whole_lives)
def test_loop_devices_and_the_fake_host_give_the_same_codes_and_mounts(sequence: list[Step]) -> None:
    real, fake = asyncio.run(on_loop_devices(sequence)), on_the_fake_host(sequence)
    assert real == fake
    agrees_with_the_model(real)
    counted["sequences"] += 1
    counted["steps"] += len(sequence)
    counted["deaths"] += sum(answer == "killed" for _, answer, _ in real)


def agrees_with_the_model(seen: list[Outcome]) -> None:
    """The state machine's model says the same of the kernel."""
    model = Model()
    for step, answer, mounted in seen:
        if answer == "killed":
            model.adopt(step, set(mounted))
        else:
            assert answer == model.apply(step), step
        assert set(mounted) == model.mounts(), step


def test_there_were_sequences_with_deaths(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    for name, count in counted.items():
        record_property(name, count)
    with capsys.disabled():
        print(f"\nthe same on loop devices: {counted}")  # noqa: T201 - its report
    assert counted["deaths"] >= EXAMPLES
