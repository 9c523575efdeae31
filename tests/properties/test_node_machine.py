"""Volumes on one node: every order of calls, repeats, restarts and deaths, compared with a model after each step.

Hypothesis chooses what happens. The fake host counts what is done to disks; the data that a pod has written must be on
the disk after every step, and a file system is made under our mark only and never where something was mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import looptime
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.fakes.host import MIB
from tests.fakes.node_model import Model
from tests.fakes.sequences import KINDS, TARGETS, Do, Driver, FakeWorld, Step, plain

EXAMPLES = 60
LEAST_STEPS = 2000
SIZE = 8 * MIB
DATA_AT = 3 * MIB
DATA = b"written by a pod"

volumes = st.sampled_from(range(len(KINDS)))
pods = st.sampled_from(TARGETS)
deaths = st.sampled_from((0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9))
"""No call makes more than nine changes, most make two."""


class OneNode(RuleBasedStateMachine):
    taken = 0
    died = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = looptime.new_event_loop(start=0)
        self.world = FakeWorld(size=SIZE)
        self.driver = Driver(self.world)
        self.model = Model()
        self.written: set[int] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def take(self, step: Step) -> None:
        """One step of both, and after a death what the next process finds."""
        answer = self.run(self.driver.send(step))
        OneNode.taken += 1
        if answer == "killed":
            OneNode.died += 1
            self.model.adopt(step, set(self.run(self.driver.mounts())))
        else:
            assert answer == self.model.apply(step), f"{step} was answered with {answer}"
        self.write(step.volume)

    def write(self, volume: int) -> None:
        """A pod that may write does so, once."""
        if volume not in self.written and False in self.model.volumes[volume].pods.values():
            self.world.host.disks[f"vd{volume}"].content[DATA_AT : DATA_AT + len(DATA)] = DATA
            self.written.add(volume)

    @rule(volume=volumes, kill_at=deaths)
    def staging(self, volume: int, kill_at: int) -> None:
        self.take(Step(do=Do.STAGE, volume=volume, fs_type="ext4", kill_at=kill_at))

    @rule(volume=volumes, kill_at=deaths)
    def staging_again_after_a_death(self, volume: int, kill_at: int) -> None:
        step = Step(do=Do.STAGE, volume=volume, kill_at=kill_at)
        self.take(step)
        self.take(plain(step))

    @rule(volume=volumes)
    def staging_as_another_type(self, volume: int) -> None:
        if self.model.volumes[volume].formatted:
            self.take(Step(do=Do.STAGE, volume=volume, fs_type="xfs"))

    @rule(volume=volumes, pod=pods, read_only=st.booleans(), kill_at=deaths)
    def publishing(self, *, volume: int, pod: str, read_only: bool, kill_at: int) -> None:
        self.take(Step(do=Do.PUBLISH, volume=volume, target=pod, read_only=read_only, kill_at=kill_at))

    @rule(volume=volumes, pod=pods, kill_at=deaths)
    def unpublishing(self, *, volume: int, pod: str, kill_at: int) -> None:
        self.take(Step(do=Do.UNPUBLISH, volume=volume, target=pod, kill_at=kill_at))

    @rule(volume=volumes, kill_at=deaths)
    def unstaging(self, volume: int, kill_at: int) -> None:
        self.take(Step(do=Do.UNSTAGE, volume=volume, kill_at=kill_at))

    @rule(volume=volumes, pod=st.sampled_from(("", *TARGETS)), grows=st.booleans(), kill_at=deaths)
    def expanding(self, *, volume: int, pod: str, grows: bool, kill_at: int) -> None:
        self.take(Step(do=Do.EXPAND, volume=volume, target=pod, grows=grows, kill_at=kill_at))

    @rule()
    def restarting(self) -> None:
        self.driver.restart()
        OneNode.taken += 1

    @invariant()
    def what_is_mounted_is_what_must_be(self) -> None:
        mounted = self.run(self.driver.mounts())
        assert set(mounted) == self.model.mounts()
        assert len(mounted) == len(set(mounted)), "something is mounted twice"

    @invariant()
    def what_a_pod_has_written_is_on_its_disk(self) -> None:
        for volume in self.written:
            content = self.world.host.disks[f"vd{volume}"].content
            assert content[DATA_AT : DATA_AT + len(DATA)] == DATA

    @invariant()
    def no_file_system_is_made_without_our_mark_or_after_a_mount(self) -> None:
        assert wrong_formats(self.world.host.calls) == []
        assert self.world.host.unmarked_formats == []

    def teardown(self) -> None:
        try:
            for volume in range(len(KINDS)):
                for pod in TARGETS:
                    self.take(Step(do=Do.UNPUBLISH, volume=volume, target=pod))
                self.take(Step(do=Do.UNSTAGE, volume=volume))
            assert self.world.host.mounts == []
            assert self.world.host.folders <= {self.driver.staging(volume) for volume in range(len(KINDS))}
            assert self.world.host.files == {}
        finally:
            self.loop.close()


def wrong_formats(calls: list[str]) -> list[str]:
    """The formats of a disk that had been mounted."""
    wrong, mounted = [], set()
    for call in calls:
        words = call.split()
        if words[0] == "mount":
            mounted.add(words[1].rpartition("/")[2])
        if words[0] == "make" and words[3] in mounted:
            wrong.append(call)
    return wrong


@pytest.mark.timeout(300)
def test_every_order_of_calls_restarts_and_deaths_agrees_with_the_model(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    OneNode.taken = OneNode.died = 0
    run_state_machine_as_test(
        OneNode,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    record_property("steps", OneNode.taken)
    with capsys.disabled():
        print(f"\nnode machine: {OneNode.taken} steps, {OneNode.died} deaths")  # noqa: T201 - its report
    assert OneNode.taken >= LEAST_STEPS
