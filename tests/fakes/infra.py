"""The two infra ports as one replica of the driver sees the cluster of ``infra_cluster``: with a cache that lags."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import InfraVolume, NewVolume
from kubevirt_csi.domain.machines import Machine, Plug, Survey
from kubevirt_csi.waiting import Notice
from tests.fakes.infra_cluster import InfraCluster


class Replica:
    """One process's view: ``volumes`` and ``machines`` implement the ports; the cache is ``lag`` seconds behind."""

    def __init__(self, cluster: InfraCluster, *, lag: float = 0.0) -> None:
        self.cluster = cluster
        self.lag = lag
        self._volumes: dict[str, InfraVolume | None] = {name: cluster.volume(name) for name in cluster.volumes}
        self._machines: dict[str, Machine | None] = dict(cluster.machines)
        self._notices: defaultdict[str, Notice] = defaultdict(Notice)
        self._late_instances: dict[str, Machine | None] = {}
        self._events = 0
        self._seen: Counter[str] = Counter()
        cluster.touched.append(self._touched)
        self.volumes = FakeVolumes(self)
        self.machines = FakeMachines(self)

    def _touched(self, name: str) -> None:
        volume, machine = self.cluster.volume(name), self.cluster.machines.get(name)
        self._events += 1
        event = self._events

        def arrive() -> None:
            if event > self._seen[name]:  # timers of one moment fire in any order, a watch's events do not
                self._seen[name] = event
                self._volumes[name], self._machines[name] = volume, self._as_seen(machine)
                self._notices[name].notify()

        if self.lag:
            self.cluster.later(self.lag, arrive)
        else:
            arrive()

    def forget(self, name: str) -> None:
        """The cache is as if it had never heard of the volume."""
        self._volumes.pop(name, None)

    def delay_instance(self, name: str) -> None:
        """The watch of instances stands still: the cache goes on with the VM alone."""
        self._late_instances[name] = self._machines[name]

    def _as_seen(self, machine: Machine | None) -> Machine | None:
        late = self._late_instances.get(machine.name) if machine is not None else None
        return replace(machine, instance=late.instance) if machine is not None and late is not None else machine

    def lose_instance(self, name: str) -> None:
        """The cache shows the VM without its instance, until the next change."""
        machine = self._machines[name]
        assert machine is not None
        self._machines[name] = replace(machine, instance=None)
        self._notices[name].notify()

    def cached_volume(self, name: str) -> InfraVolume | None:
        return self._volumes.get(name)

    def cached_machine(self, name: str) -> Machine | None:
        return self._machines.get(name)

    def cached_machines(self) -> list[Machine]:
        return [machine for machine in self._machines.values() if machine is not None]

    def changed(self, name: str) -> Awaitable[None]:
        return self._notices[name].changed()

    async def request(self, kind: str, action: Callable[[], None]) -> None:
        """Carries the request out, or lets it go wrong as the next fault of its kind says."""
        try:
            await asyncio.sleep(self.cluster.timing.request)
        except asyncio.CancelledError:
            if self.cluster.orphan_effect is not None:
                self.cluster.later(self.cluster.orphan_effect, lambda: _regardless(action))
            raise
        fault = self.cluster.faults[kind].popleft() if self.cluster.faults[kind] else None
        if fault is None:
            action()
            return
        if fault.carried_out_after is not None:
            self.cluster.later(fault.carried_out_after, lambda: _regardless(action))
        raise fault.error

    async def read(self, kind: str) -> None:
        self.cluster.reads[kind] += 1
        await self.request(kind, lambda: None)


def _regardless(action: Callable[[], None]) -> None:
    """Nobody hears the answer of a request that was given up."""
    with suppress(Exception):
        action()


class FakeVolumes:
    """``ports.infra.Volumes``."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._cluster = replica.cluster

    async def get(self, volume_id: str, *, fresh: bool = False) -> InfraVolume | None:
        if not fresh:
            return self._replica.cached_volume(volume_id)
        await self._replica.read("get_volume")
        return self._cluster.volume(volume_id)

    async def get_with_claim_afresh(self, volume_id: str) -> InfraVolume | None:
        await self._replica.read("get_claim")
        cached, found = self._replica.cached_volume(volume_id), self._cluster.volume(volume_id)
        data_volume = cached.data_volume if cached is not None else None
        claim = found.claim if found is not None else None
        known = found or cached
        return replace(known, data_volume=data_volume, claim=claim) if known and (data_volume or claim) else None

    async def is_foreign(self, volume_id: str) -> bool:
        await self._replica.read("is_foreign")
        volume = self._cluster.volumes.get(volume_id)
        return volume is not None and not volume.ours

    async def create(self, volume: NewVolume) -> InfraVolume | None:
        made: list[bool] = []

        def create() -> None:
            made.append(volume.id not in self._cluster.volumes)
            self._cluster.create(volume)

        await self._replica.request("create", create)
        return self._cluster.volume(volume.id) if made == [True] else None

    async def delete(self, volume: InfraVolume) -> None:
        await self._replica.request("delete", lambda: self._cluster.delete(volume))

    async def annotate(self, volume: InfraVolume, annotations: Mapping[str, str | None]) -> InfraVolume:
        await self._replica.request("annotate", lambda: self._cluster.annotate(volume, dict(annotations)))
        written = self._cluster.volume(volume.id)
        assert written is not None
        return written

    async def resize(self, volume: InfraVolume, growth: Growth) -> InfraVolume:
        await self._replica.request("resize", lambda: self._cluster.resize(volume, growth))
        written = self._cluster.volume(volume.id)
        assert written is not None
        return written

    async def file_system_overhead(self, volume: InfraVolume) -> Fraction:
        del volume
        await self._replica.read("file_system_overhead")
        return self._cluster.overhead

    def changed(self, volume_id: str) -> Awaitable[None]:
        return self._replica.changed(volume_id)


class FakeMachines:
    """``ports.infra.Machines``."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._cluster = replica.cluster

    async def get(self, name: str, *, fresh: bool = False) -> Machine | None:
        if fresh:
            await self._replica.read("get_machine")
            machine = self._cluster.machines.get(name)
        else:
            machine = self._replica.cached_machine(name)
        return None if name in self._cluster.foreign_machines else machine

    async def holders(self, claim: str, *, fresh: bool = False) -> list[Machine]:
        if fresh:
            await self._replica.read("holders")
        machines = list(self._cluster.machines.values()) if fresh else self._replica.cached_machines()
        return [machine for machine in machines if machine.holds(claim)]

    async def survey(self) -> Survey:
        await self._replica.read("holders")
        machines = dict(self._cluster.machines)
        return Survey(machines=machines, nodes=frozenset(machines) - self._cluster.foreign_machines)

    async def get_running(self, name: str) -> Machine | None:
        cached = self._replica.cached_machine(name)
        await self._replica.read("get_instance")
        fresh = self._cluster.machines.get(name)
        instance = fresh.instance if fresh is not None else None
        if cached is None or cached.uid is None:
            found = Machine(name=name, uid=None, instance=instance) if instance is not None else None
        else:
            found = replace(cached, instance=instance)
        return None if name in self._cluster.foreign_machines else found

    async def add_volume(self, vm: str, plug: Plug) -> None:
        await self._replica.request("add_volume", lambda: self._cluster.add_volume(vm, plug))

    async def remove_volume(self, vm: str, volume_id: str) -> None:
        await self._replica.request("remove_volume", lambda: self._cluster.remove_volume(vm, volume_id))

    async def remove_volume_from_instance(self, vm: str, volume_id: str) -> None:
        await self._replica.request(
            "remove_volume_from_instance", lambda: self._cluster.remove_volume_from_instance(vm, volume_id)
        )

    def changed(self, name: str) -> Awaitable[None]:
        return self._replica.changed(name)
