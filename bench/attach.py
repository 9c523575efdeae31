"""``python -m bench.attach``: what the driver adds to a hot-plug, and what it asks the management cluster for.

Everything is measured on a machine-less lab with the shipped manifests: first against hot-plugs that take a quarter of
a second, then against some that take two, where 30 publishes come at once as well. The last line is JSON; the exit
code is 1 when a goal is missed. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import driver
from bench.driver import Driver
from bench.requests import UNEXPLAINED, Request, counted
from bench.sidecars import ATTACHED, Attachments
from bench.sidecars import GONE as RELEASED
from bench.sightings import ACCEPTED, FILLED, GONE, READY, Sightings
from e2e.lab.assembly import VMS
from e2e.lab.kubevirt.connection import MERGE_PATCH, Connection, connect
from e2e.lab.kubevirt.faults import PREFIX
from e2e.lab.kubevirt.gates import KUBEVIRT_KEY
from e2e.lab.kubevirt.resources import KUBEVIRT
from e2e.lab.lifecycle import bring_up
from e2e.lab.machineless import AUDIT_LOG
from e2e.lab.state import LabDirectory, LabError, lab_directory

SAMPLES = 20
SLOW_LIVES = 4
BURST = 30
QUICK = {"scale": 0.05}
# A hot-plug of two seconds: half a second until virt-controller gets to the VM, as on a cluster with many VMs, the rest
# in virt-handler and the guest; both can be had for many disks at once.
SYNC = {f"{PREFIX}slow-sync": "500ms"}
SLOW = {
    "pod_scheduled": 0.02,
    "pod_ready": 0.08,
    "pod_gone": 0.05,
    "volume_mounted": 0.1,
    "volume_ready": 1.15,
    "volume_unmounted": 0.1,
    "importer": 0.1,
    "provisioned": 0.02,
    "machine_start": 0.1,
    "retry": 0.05,
}
GOALS_MS = {"p50": 20.0, "p99": 100.0}
GOAL_REQUESTS = 6
GOAL_BURST_SECONDS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A running lab as it is measured."""

    driver: Driver
    management: Connection
    seen: Sightings
    attachments: Attachments
    audit_log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One volume's life, in seconds: the cluster's own part, and what came on top."""

    hotplug: float
    added: float
    removal: float
    added_to_detach: float


async def live(bench: Bench, volume: str, vm: str) -> Life:
    """One life by direct calls. What is added counts from our watch's sighting to the answer of the call."""
    now = asyncio.get_running_loop().time
    await bench.driver.create(volume)
    await bench.driver.publish(volume, vm)
    attached = now()
    begun = now()
    await bench.driver.unpublish(volume, vm)
    detached = now()
    await bench.driver.delete(volume)
    accepted, ready = await bench.seen.at(volume, ACCEPTED), await bench.seen.at(volume, READY)
    gone = await bench.seen.at(volume, GONE)
    return Life(hotplug=ready - accepted, added=attached - ready, removal=gone - begun, added_to_detach=detached - gone)


async def live_by_sidecars(bench: Bench, volume: str, vm: str) -> Life:
    """One life by VolumeAttachment. What is added is all but the hot-plug itself: sidecar, driver, pacing, requests."""
    now = asyncio.get_running_loop().time
    await bench.attachments.have_volume(volume, await bench.driver.create(volume))
    begun = now()
    await bench.attachments.attach(volume, vm)
    attached = await bench.attachments.at(volume, ATTACHED)
    accepted, ready = await bench.seen.at(volume, ACCEPTED), await bench.seen.at(volume, READY)
    ended = now()
    await bench.attachments.detach(volume)
    released = await bench.attachments.at(volume, RELEASED)
    gone = await bench.seen.at(volume, GONE)
    await bench.attachments.drop_volume(volume)
    await bench.driver.delete(volume)
    return Life(
        hotplug=ready - accepted,
        added=attached - begun - (ready - accepted),
        removal=gone - ended,
        added_to_detach=released - gone,
    )


async def burst(bench: Bench) -> float:
    """So many publishes of filled volumes at once to two VMs: seconds until the last answer."""
    names = [f"burst-{number}" for number in range(BURST)]
    homes = {name: VMS[number % len(VMS)] for number, name in enumerate(names)}
    await asyncio.gather(*(bench.driver.create(name) for name in names))
    await asyncio.gather(*(bench.seen.at(name, FILLED) for name in names))
    begin = time.monotonic()
    await asyncio.gather(*(bench.driver.publish(name, vm) for name, vm in homes.items()))
    seconds = time.monotonic() - begin
    await asyncio.gather(*(bench.driver.unpublish(name, vm) for name, vm in homes.items()))
    await asyncio.gather(*(bench.driver.delete(name) for name in names))
    return seconds


@asynccontextmanager
async def measured(directory: LabDirectory) -> AsyncIterator[Bench]:
    """A running lab, watched."""
    state = directory.read()
    if state is None:
        raise LabError(f"lab {directory.name} has no state")
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        management = await stack.enter_async_context(connect(Path(state.kubeconfigs["management"])))
        tenant = await stack.enter_async_context(connect(Path(state.kubeconfigs["tenant"])))
        caller = await stack.enter_async_context(driver.connect(Path(state.sockets["controller"])))
        seen, attachments = Sightings(management), Attachments(tenant)
        watches = [tasks.create_task(seen.run()), tasks.create_task(attachments.run())]
        yield Bench(
            driver=caller,
            management=management,
            seen=seen,
            attachments=attachments,
            audit_log=directory.logs / AUDIT_LOG,
        )
        for watch in watches:
            watch.cancel()


async def quick(directory: LabDirectory) -> tuple[list[Life], list[Life], Counter[Request]]:
    """Lives by direct calls and by sidecars, and the requests of the former."""
    async with measured(directory) as bench:
        await live(bench, "warm-up", VMS[0])
        bench.driver.phases.clear()
        direct = [await live(bench, f"direct-{n}", VMS[n % 2]) for n in range(SAMPLES)]
        requests = counted(bench.audit_log, bench.driver.phases)
        whole = [await live_by_sidecars(bench, f"whole-{n}", VMS[n % 2]) for n in range(SAMPLES)]
    return direct, whole, requests


async def slow(directory: LabDirectory) -> tuple[list[Life], Counter[Request], float]:
    """The same with slow hot-plugs, and many at once."""
    async with measured(directory) as bench:
        await bench.management.request(
            "PATCH", KUBEVIRT.path(KUBEVIRT_KEY), body={"metadata": {"annotations": SYNC}}, content_type=MERGE_PATCH
        )
        await live(bench, "warm-up", VMS[0])
        bench.driver.phases.clear()
        lives = [await live(bench, f"slow-{n}", VMS[n % 2]) for n in range(SLOW_LIVES)]
        requests = counted(bench.audit_log, bench.driver.phases)
        seconds = await burst(bench)
    return lives, requests, seconds


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def milliseconds(name: str, values: Sequence[float]) -> dict[str, float]:
    """p50 and p99 under the name."""
    return {
        f"{name}_ms_p50": round(1000 * median(values), 1),
        f"{name}_ms_p99": round(1000 * percentile(values, 0.99), 1),
    }


def per_life(requests: Counter[Request], lives: int) -> dict[Request, float]:
    """How many of each kind a life takes, in the order of its phases."""
    order = ("create", "publish", "unpublish", "delete")
    return {
        kind: round(count / lives, 2)
        for kind, count in sorted(requests.items(), key=lambda item: (order.index(item[0].phase), item[0]))
    }


def report(directory: LabDirectory) -> tuple[dict[str, float], list[str]]:
    """Measures everything; returns the figures and what is wrong with them."""
    with bring_up(directory, machines="none", clusters="both", say=say, durations=QUICK, audit=True):
        direct, whole, quick_requests = asyncio.run(quick(directory))
    with bring_up(directory, machines="none", clusters="both", say=say, durations=SLOW, audit=True):
        slow_lives, slow_requests, burst_seconds = asyncio.run(slow(directory))
    requests, others = per_life(quick_requests, SAMPLES), per_life(slow_requests, SLOW_LIVES)
    for kind, count in requests.items():
        say(f"  {count:5.2f} x {kind}: {kind.reason}")
    figures = {
        **milliseconds("hotplug", [life.hotplug for life in direct]),
        **milliseconds("added", [life.added for life in direct]),
        **milliseconds("detach_added", [life.added_to_detach for life in direct]),
        **milliseconds("sidecars_added", [life.added for life in whole]),
        **milliseconds("sidecars_detach_added", [life.added_to_detach for life in whole]),
        **milliseconds("slow_hotplug", [life.hotplug for life in slow_lives]),
        **milliseconds("slow_added", [life.added for life in slow_lives]),
        "writes_per_life": sum(count for kind, count in requests.items() if not kind.reads),
        "reads_per_life": sum(count for kind, count in requests.items() if kind.reads),
        "slow_writes_per_life": sum(count for kind, count in others.items() if not kind.reads),
        "slow_reads_per_life": sum(count for kind, count in others.items() if kind.reads),
        "burst_seconds": round(burst_seconds, 2),
    }
    return figures, [*missed(figures), *unexplained({**requests, **others})]


def missed(figures: Mapping[str, float]) -> list[str]:
    """The goals that are not met, in words."""
    goals = {f"{name}_ms_{share}": goal for name in ("added", "detach_added") for share, goal in GOALS_MS.items()}
    goals |= {f"{lives}{kind}_per_life": GOAL_REQUESTS for lives in ("", "slow_") for kind in ("reads", "writes")}
    goals |= {"burst_seconds": GOAL_BURST_SECONDS}
    found = [f"{name} is {figures[name]:g}, the goal {goal:g}" for name, goal in goals.items() if figures[name] > goal]
    found += [
        f"{kind}_per_life depend on how long a hot-plug takes"
        for kind in ("reads", "writes")
        if figures[f"{kind}_per_life"] != figures[f"slow_{kind}_per_life"]
    ]
    return found


def unexplained(requests: Mapping[Request, float]) -> list[str]:
    """The requests that nobody gave a reason for."""
    return [f"{kind} has no reason" for kind in requests if kind.reason == UNEXPLAINED]


def say(text: str) -> None:
    """A line for a person."""
    print(text, flush=True)


def main() -> int:
    """Measures and prints; the exit code is 1 when a goal is missed or nothing could be measured."""
    try:
        figures, wrong = report(lab_directory("bench-attach"))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for text in wrong:
        say(f"MISSED: {text}")
    say(json.dumps(figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
