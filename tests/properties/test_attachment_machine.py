"""Two replicas, faults at every request, crashes, VMs that come and go: never two VMs with one disk, and it ends clean.

Hypothesis chooses what happens; time is virtual. A replica runs one operation a volume, as the RPC layer has it. An
operation that reports success is checked against the cluster at that very moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import looptime
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.errors import DriverError, Unavailable
from kubevirt_csi.operations.provisioning import CreateRequest
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import WRITER, Driver, node
from tests.fakes.infra_cluster import InfraCluster
from tests.fakes.infra_machines import Mode

VOLUMES = ("pvc-a", "pvc-b")
VMS = ("vm1", "vm2")
REPLICAS = (0, 1)
REQUESTS = (
    "create",
    "delete",
    "annotate",
    "add_volume",
    "remove_volume",
    "get_volume",
    "get_machine",
    "get_instance",
    "holders",
    "remove_volume_from_instance",
)
LATEST_EFFECT_SECONDS = 12.0
"""A request that got no answer is carried out within this time or never."""

pytestmark = pytest.mark.timeout(300)
replicas, volumes, vms = st.sampled_from(REPLICAS), st.sampled_from(VOLUMES), st.sampled_from(VMS)


class TwoReplicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = looptime.new_event_loop(start=0)
        self.loop.set_exception_handler(lambda _loop, told: self.surprises.append(str(told)))
        self.surprises: list[str] = []
        self.cluster = InfraCluster()
        self.processes = 0
        self.tasks: dict[tuple[int, str], asyncio.Task[None]] = {}
        self.run(self.set_up())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    async def set_up(self) -> None:
        for vm in VMS:
            self.cluster.have_vm(vm)
        for volume in VOLUMES:
            self.cluster.have_volume(volume)
        self.cluster.exclusive.update(VOLUMES)
        self.drivers = [self.new_driver(lag) for lag in (0.0, 3.0)]

    def new_driver(self, lag: float) -> Driver:
        self.processes += 1
        return Driver(self.cluster, process=f"process-{self.processes}", lag=lag)

    def begin(self, replica: int, volume: str, work: Coroutine[Any, Any, object]) -> None:
        """Starts the operation, unless one on the volume is running in this replica."""
        running = self.tasks.get((replica, volume))
        if running is not None and not running.done():
            work.close()
            return

        async def guarded() -> None:
            with suppress(DriverError):
                await work

        async def start() -> None:
            self.tasks[replica, volume] = asyncio.create_task(guarded())

        self.run(start())

    async def create(self, driver: Driver, volume: str) -> None:
        capacity = CapacityRange(required=2**30)
        await driver.create(CreateRequest(name=volume, capabilities=[WRITER], capacity=capacity, parameters={}))

    async def publish(self, driver: Driver, volume: str, vm: str) -> None:
        instance = self.cluster.machines[vm].instance if vm in self.cluster.machines else None
        await driver.publish(volume, node(vm), WRITER)
        machine = self.cluster.machines.get(vm)
        same = machine is not None and machine.instance is not None and machine.instance == instance
        assert machine is None or not same or machine.attached(volume), f"{volume} reported attached to {vm}"

    async def unpublish(self, driver: Driver, volume: str, vm: str) -> None:
        await driver.unpublish(volume, node(vm))

    @rule(replica=replicas, volume=volumes)
    def creating(self, replica: int, volume: str) -> None:
        self.begin(replica, volume, self.create(self.drivers[replica], volume))

    @rule(replica=replicas, volume=volumes, vm=vms)
    def publishing(self, replica: int, volume: str, vm: str) -> None:
        self.begin(replica, volume, self.publish(self.drivers[replica], volume, vm))

    @rule(
        first=replicas,
        then=replicas,
        volume=volumes,
        pause=st.sampled_from([0.02, 0.07, 0.12, 1.0, 6.0, 29.0, 44.0]),
        effect=st.sampled_from([None, 4.0, LATEST_EFFECT_SECONDS]),
        detach=st.booleans(),
    )
    def moving_while_an_attach_is_in_doubt(
        self, *, first: int, then: int, volume: str, pause: float, effect: float | None, detach: bool
    ) -> None:
        """What everything else leads to only once in a thousand times."""
        self.run(self.heal(volume))
        self.cluster.fail("add_volume", Unavailable("no answer"), carried_out_after=effect)
        self.begin(first, volume, self.publish(self.drivers[first], volume, "vm1"))
        self.run(asyncio.sleep(pause))
        if detach:
            self.begin(then, volume, self.unpublish(self.drivers[then], volume, "vm1"))
            self.run(asyncio.sleep(0.1))
        self.begin(then, volume, self.publish(self.drivers[then], volume, "vm2"))

    async def heal(self, volume: str) -> None:
        """Takes away what would keep an attach from being sent."""
        self.cluster.faults.clear()
        for vm in VMS:
            self.cluster.forget_vm(vm)
            if vm not in self.cluster.machines:
                self.cluster.have_vm(vm)
            if self.cluster.machines[vm].instance is None:
                self.cluster.start(vm)
            self.cluster.change_vm(vm, migrating=False)
        if volume not in self.cluster.volumes:
            self.cluster.have_volume(volume)

    @rule(replica=replicas, volume=volumes, vm=vms)
    def unpublishing(self, replica: int, volume: str, vm: str) -> None:
        self.begin(replica, volume, self.unpublish(self.drivers[replica], volume, vm))

    @rule(replica=replicas, volume=volumes)
    def deleting(self, replica: int, volume: str) -> None:
        self.begin(replica, volume, self.drivers[replica].delete(volume))

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.7, 3.0, 10.0, 20.0, 50.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(request=st.sampled_from(REQUESTS), effect=st.sampled_from([None, 0.0, 0.3, 4.0, LATEST_EFFECT_SECONDS]))
    def a_request_gets_no_answer(self, request: str, effect: float | None) -> None:
        self.cluster.fail(request, Unavailable("no answer"), carried_out_after=effect)

    @rule(request=st.sampled_from(["annotate", "add_volume", "remove_volume", "delete"]))
    def a_request_meets_a_change(self, request: str) -> None:
        self.cluster.fail(request, Stale("changed meanwhile"))

    @rule(
        replica=replicas,
        lag=st.sampled_from([0.0, 0.2, 3.0, 30.0]),
        effect=st.sampled_from([None, 0.0, LATEST_EFFECT_SECONDS]),
    )
    def a_replica_crashes(self, replica: int, lag: float, effect: float | None) -> None:
        async def crash() -> None:
            self.cluster.orphan_effect = effect
            mine = [task for (owner, _), task in self.tasks.items() if owner == replica and not task.done()]
            for task in mine:
                task.cancel()
            if mine:
                await asyncio.wait(mine)
            self.cluster.orphan_effect = None
            self.drivers[replica] = self.new_driver(lag)

        self.run(crash())

    @precondition(lambda self: all(vm in self.cluster.machines for vm in VMS))
    @rule(vm=vms)
    def a_vm_stops(self, vm: str) -> None:
        async def stop() -> None:
            self.cluster.remove_instance(vm)

        self.run(stop())

    @rule(vm=vms)
    def a_vm_starts(self, vm: str) -> None:
        async def start() -> None:
            if vm not in self.cluster.machines:
                self.cluster.have_vm(vm)
            elif self.cluster.machines[vm].instance is None and not self.cluster.machines[vm].deleting:
                self.cluster.start(vm)

        self.run(start())

    @rule(vm=vms, gone_after=st.sampled_from([None, 0.3, 20.0]))
    def a_vm_is_deleted(self, vm: str, gone_after: float | None) -> None:
        async def delete() -> None:
            if vm in self.cluster.machines:
                self.cluster.delete_vm(vm, gone_after=gone_after)

        self.run(delete())

    @rule(mode=st.sampled_from(list(Mode)))
    def the_feature_gates_change(self, mode: Mode) -> None:
        async def change() -> None:
            self.cluster.become(mode)

        self.run(change())

    @rule(vm=vms, migrating=st.booleans())
    def a_migration(self, vm: str, migrating: bool) -> None:
        async def migrate() -> None:
            if vm in self.cluster.machines and self.cluster.machines[vm].instance is not None:
                self.cluster.change_vm(vm, migrating=migrating)

        self.run(migrate())

    @rule(volume=volumes)
    def a_volume_gets_stuck(self, volume: str) -> None:
        self.cluster.stuck.add(volume)

    @rule(volume=volumes)
    def a_volume_comes_unstuck(self, volume: str) -> None:
        async def unstick() -> None:
            self.cluster.unstick(volume)

        self.run(unstick())

    @invariant()
    def no_two_vms_were_given_one_disk(self) -> None:
        assert self.cluster.violations == []

    @invariant()
    def nothing_but_the_drivers_errors_ended_an_operation(self) -> None:
        for task in self.tasks.values():
            if task.done() and not task.cancelled():
                task.result()
        assert self.surprises == []

    def teardown(self) -> None:
        try:
            self.run(self.converge())
            assert self.cluster.violations == []
        finally:
            self.run(self.end_tasks())
            self.loop.close()

    async def end_tasks(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks.values())

    async def converge(self) -> None:
        """When the faults end, asking long enough brings everything down to nothing."""
        self.cluster.faults.clear()
        self.cluster.become(Mode.DECLARATIVE)
        for volume in VOLUMES:
            self.cluster.unstick(volume)
        for vm in VMS:
            self.cluster.forget_vm(vm)
            if vm in self.cluster.machines and self.cluster.machines[vm].instance is not None:
                self.cluster.change_vm(vm, migrating=False)
        if self.tasks:
            await asyncio.wait(self.tasks.values(), timeout=2000)
        for volume in VOLUMES:
            await self.insist(volume)
        assert self.cluster.volumes == {}
        assert not any(machine.holds(volume) for machine in self.cluster.machines.values() for volume in VOLUMES)

    async def insist(self, volume: str) -> None:
        last: DriverError | None = None
        for _ in range(30):
            try:
                await self.drivers[0].unpublish(volume, "")
                await self.drivers[0].delete(volume)
            except DriverError as error:
                last = error
                await asyncio.sleep(10)
            else:
                return
        raise AssertionError(f"{volume} does not come to an end: {last}")


TestTwoReplicas = TwoReplicas.TestCase
TestTwoReplicas.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
