"""The controller is killed with SIGKILL at exact points of its calls, and the same call then comes to the same end.

Two victims die, each with a call stopped at every point of ``schedules``; one is started again, the work of the other
goes to a second replica that has run all the time. The points are reached because a ``doorway`` holds the request or
hides the state, so nothing here depends on time. It does take the 45 seconds of the fence between replicas
(``kubevirt_csi.domain.attachments``), which all schedules wait for together.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import StreamTerminatedError

from e2e.lab.controlplane import ControlPlane
from kubevirt_csi._csi.csi import v1 as csi
from tests.api.standin.aftermath import accepted, leftovers, recorded, volumes_of
from tests.api.standin.conftest import StandIn
from tests.api.standin.doorway import Doorway, Hold, Veil, doorway
from tests.api.standin.replicas import Replica, Told, running, tell
from tests.api.standin.schedules import GROWN_SIZE, Call, Moment, Recovery, Schedule, schedules
from tests.api.standin.site import Site, phase_of, vm
from tests.api.standin.test_controller import create, expand, publish

IN_PROGRESS = (Status.ABORTED, Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
"""The codes that a sidecar repeats the call after, and remembers that something may be there."""
ELSEWHERE = "kill-elsewhere"
CALL_SECONDS = 60.0
REACH_SECONDS = 40.0
RECOVERY_SECONDS = 110.0
LONGEST_PAUSE_SECONDS = 4.0
ATTACHMENTS, CONTENT = "csi.kubevirt.io/attachments", "csi.kubevirt.io/content"


@dataclass(slots=True, kw_only=True)
class Caller:
    """The sidecars: calls about one volume, to one process at a time, repeated until they succeed."""

    schedule: Schedule
    namespace: str
    codes: list[Status] = field(default_factory=list)
    """Of all answers since the kill."""

    def request(self, call: Call, *, to: str = "") -> bytes:
        volume = self.schedule.volume
        node_id = f"{self.namespace}/{to or self.schedule.vm}"
        match call:
            case Call.CREATE:
                return bytes(create(volume))
            case Call.PUBLISH:
                return bytes(publish(volume, node_id))
            case Call.UNPUBLISH:
                return bytes(csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=node_id))
            case Call.EXPAND:
                return bytes(expand(volume))
            case Call.DELETE:
                return bytes(csi.DeleteVolumeRequest(volume_id=volume))

    async def once(self, channel: Channel, call: Call, *, to: str = "") -> Told:
        told = await tell(channel, call.value, self.request(call, to=to), seconds=CALL_SECONDS)
        self.codes.append(told.code)
        return told

    async def until_done(self, channel: Channel, call: Call, *, to: str = "") -> None:
        """Repeats the call, with the sidecars' pauses, as long as the answer says that it may be in progress."""
        pause = 1.0
        while (told := await self.once(channel, call, to=to)).code is not Status.OK:
            assert told.code in IN_PROGRESS, f"{call.value}: {told.code.name} {told.text}"
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


@dataclass(slots=True, kw_only=True)
class Run:
    """One schedule on its way."""

    schedule: Schedule
    caller: Caller
    site: Site
    hold: Hold | None = None
    veil: Veil | None = None

    async def prepare(self, channel: Channel) -> None:
        """What comes before the call that is cut off."""
        call = self.schedule.point.call
        if call is not Call.CREATE:
            await self.caller.until_done(channel, Call.CREATE)
        if call is Call.UNPUBLISH:
            await self.caller.until_done(channel, Call.PUBLISH)

    async def reach(self, channel: Channel, door: Doorway) -> asyncio.Task[Told]:
        """Makes the call and returns it when it is at its point."""
        self.hold, self.veil = self.schedule.hold(), self.schedule.veil()
        door.holds += [self.hold] if self.hold else []
        door.veils += [self.veil] if self.veil else []
        self.caller.codes.clear()
        call = asyncio.create_task(self.caller.once(channel, self.schedule.point.call))
        stop = self.hold or self.veil
        reached = asyncio.create_task(stop.reached.wait()) if stop else call
        async with asyncio.timeout(REACH_SECONDS):
            await asyncio.wait({call, reached}, return_when=asyncio.FIRST_COMPLETED)
        if stop is not None:
            reached.cancel()
            assert not call.done(), f"answered {call.result()} before its point"
        return call

    async def recover(self, channel: Channel) -> None:
        """The same call again, and the rest of the volume's life."""
        async with asyncio.timeout(RECOVERY_SECONDS):
            await self._recover(channel)

    async def _recover(self, channel: Channel) -> None:
        point, elsewhere = self.schedule.point, self.schedule.elsewhere
        if self.schedule.recovery is Recovery.MOVED:
            first = await self.caller.once(channel, Call.PUBLISH, to=elsewhere)
            await self._deliver_late()
            self._judge_elsewhere(first)
            await self.caller.until_done(channel, Call.UNPUBLISH)
            await self.caller.until_done(channel, Call.PUBLISH, to=elsewhere)
            await self._end(channel, attached_to=elsewhere)
            return
        first = await self.caller.once(channel, point.call)
        assert first.code in (Status.OK, *IN_PROGRESS), f"{first.code.name} {first.text}"
        await self._deliver_late()
        if first.code is not Status.OK:
            await self.caller.until_done(channel, point.call)
        if not point.fenced:
            assert Status.ABORTED not in self.caller.codes, f"was made to wait: {first.text}"
        await self._end(channel, attached_to=self.schedule.vm if point.call is Call.PUBLISH else "")

    def _judge_elsewhere(self, first: Told) -> None:
        """A volume that is, or may get, somewhere else is refused; one of which nothing was written need not be."""
        point = self.schedule.point
        may_be_held = point.fenced or point.plugs
        expected = (Status.FAILED_PRECONDITION,) if may_be_held else (Status.OK, *IN_PROGRESS)
        assert first.code in expected, f"elsewhere: {first.code.name} {first.text}"
        self.caller.codes.clear()

    async def _deliver_late(self) -> None:
        if self.schedule.point.moment is Moment.LATE:
            assert self.hold is not None
            await self.hold.let_through()

    async def _end(self, channel: Channel, *, attached_to: str) -> None:
        if attached_to:
            assert await self._holders() == {attached_to}
            await self.caller.until_done(channel, Call.UNPUBLISH, to=attached_to)
        assert await self._holders() == set()
        if self.schedule.point.call is not Call.DELETE:
            await self._require_claim_left_in_order()
        await self.caller.until_done(channel, Call.DELETE)
        for collection in (self.site.datavolumes, self.site.claims):
            assert (await self.site.client.call("GET", f"{collection}/{self.schedule.volume}")).code == 404

    async def _require_claim_left_in_order(self) -> None:
        """No entry is left, and what was once plugged counts as used."""
        claim = await self.site.client.get(f"{self.site.claims}/{self.schedule.volume}")
        if self.schedule.point.call is Call.EXPAND:
            assert claim["spec"]["resources"]["requests"]["storage"] == GROWN_SIZE
            assert claim["status"]["capacity"]["storage"] == GROWN_SIZE
        annotations = claim["metadata"]["annotations"]
        assert ATTACHMENTS not in annotations
        assert annotations[CONTENT] == ("used" if self.schedule.needs_vm else "none")

    async def _holders(self) -> set[str]:
        held: set[str] = set()
        for collection in (self.site.vms, self.site.vmis):
            for found in (await self.site.client.get(collection))["items"]:
                held |= {found["metadata"]["name"]} if self.schedule.volume in volumes_of(found) else set()
        return held


@dataclass(slots=True, kw_only=True)
class Failures:
    """What went wrong, by schedule."""

    texts: list[str] = field(default_factory=list)

    async def watch(self, runs: Iterable[Run], work: Callable[[Run], Awaitable[object]]) -> list[Run]:
        """Does the work for all at once; returns those that it went well for."""
        runs = list(runs)
        outcomes = await asyncio.gather(*(work(run) for run in runs), return_exceptions=True)
        good = []
        for run, outcome in zip(runs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                codes = ",".join(code.name for code in run.caller.codes)
                self.texts.append(f"{run.schedule}: {outcome!r} after {codes or 'no answer'}")
            else:
                good.append(run)
        return good


async def die(
    runs: Sequence[Run], victim: Replica, door: Doorway, failures: Failures, *, warm: Awaitable[None]
) -> list[Run]:
    """Brings every call to its point, then kills the process; returns the runs whose points were reached.

    What is held for long would be given up by the driver itself, so the points that are far away come first.
    """
    calls: dict[int, asyncio.Task[Told]] = {}

    async with Channel(path=str(victim.socket)) as channel:

        async def reach(run: Run) -> None:
            calls[run.schedule.number] = await run.reach(channel, door)

        ready = await failures.watch(runs, lambda run: run.prepare(channel))
        await warm
        far = await failures.watch([run for run in ready if run.schedule.is_reached_late], reach)
        near = await failures.watch([run for run in ready if not run.schedule.is_reached_late], reach)
        await victim.kill()
        door.open()
        return await failures.watch([*far, *near], lambda run: cut_off(run, calls[run.schedule.number]))


async def cut_off(run: Run, call: asyncio.Task[Told]) -> None:
    """The call had no answer, unless that was its point."""
    if run.schedule.point.moment is Moment.ANSWERED:
        assert (await call).code is Status.OK, call.result().text
        return
    try:
        told = await call
    except (OSError, StreamTerminatedError):
        return
    raise AssertionError(f"answered before it was killed: {told.code.name} {told.text}")


@asynccontextmanager
async def replicas(
    management: ControlPlane, namespace: str, *names: str
) -> AsyncIterator[list[tuple[Replica, Doorway]]]:
    """Running controllers, each behind a doorway of its own."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = []
        for name in names:
            door, kubeconfig = await stack.enter_async_context(doorway(management, directory, name))
            replica = Replica(name=name, directory=directory, kubeconfig=kubeconfig, namespace=namespace)
            started.append((await stack.enter_async_context(running(replica)), door))
        yield started


async def have_vms(site: Site, names: Sequence[str]) -> None:
    for name in names:
        await site.client.create(site.vms, vm(name, run_strategy="Always"))
    await asyncio.gather(*(site.vmi_until(name, lambda vmi: phase_of(vmi) == "Running") for name in names))


async def warm_up(site: Site) -> None:
    """The garbage collector takes up to 30 s to learn of a kind of owner; a call that is to be killed must not wait."""
    await site.ready_volume("warm-up")
    await site.client.delete(f"{site.datavolumes}/warm-up")
    await site.client.follow(site.claims, "warm-up", lambda claim: claim is None)


@pytest.mark.timeout(400)
async def test_a_call_that_a_kill_cuts_off_comes_to_the_same_end(
    standin: StandIn, site: Site, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    table = list(schedules(elsewhere=ELSEWHERE))
    names = [ELSEWHERE, *(schedule.vm for schedule in table if schedule.needs_vm)]
    await have_vms(site, names)
    runs = [Run(schedule=s, caller=Caller(schedule=s, namespace=site.namespace), site=site) for s in table]
    again = [run for run in runs if run.schedule.recovery is Recovery.RESTARTED]
    others = [run for run in runs if run.schedule.recovery is not Recovery.RESTARTED]
    failures = Failures()

    async def restart(victim: Replica, door: Doorway) -> None:
        good = await die(again, victim, door, failures, warm=asyncio.shield(warm))
        await victim.start()
        await recover(good, victim)

    async def take_over(victim: Replica, door: Doorway, survivor: Replica) -> None:
        await recover(await die(others, victim, door, failures, warm=asyncio.shield(warm)), survivor)

    async def recover(cut: Sequence[Run], survivor: Replica) -> None:
        async with Channel(path=str(survivor.socket)) as channel:
            await failures.watch(cut, lambda run: run.recover(channel))

    async with (
        recorded(site) as history,
        replicas(standin.management, site.namespace, "first", "second", "survivor") as started,
        asyncio.TaskGroup() as group,
    ):
        (first, first_door), (second, second_door), (survivor, survivor_door) = started
        warm = group.create_task(warm_up(site))
        group.create_task(restart(first, first_door))
        group.create_task(take_over(second, second_door, survivor))
    doors = (first_door, second_door, survivor_door)
    for schedule in table:
        made, plugged = accepted(doors, schedule)
        if (made, plugged) != (1, schedule.hotplugs):
            failures.texts.append(f"{schedule}: {made} DataVolumes were made, hot-plugs accepted: {dict(plugged)}")
    failures.texts += [f"two VMs at once: {text}" for text in history.double_hotplugs()]
    failures.texts += [f"left: {text}" for text in await leftovers(site)]
    record_property("schedules", len(table))
    with capsys.disabled():
        print(f"\nkill points: {len(table)} schedules, {len(failures.texts)} failures")  # noqa: T201 - its report
    assert not failures.texts, json.dumps(failures.texts, indent=1)
