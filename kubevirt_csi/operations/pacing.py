"""Pacing of hot-plug changes, per VM: one batch in flight, the next when the VM has settled.

KubeVirt keeps all hot-plugged disks of a VM in one pod and replaces it for every change. Changes that come faster than
a replacement takes never finish, and one that cannot finish holds up all others. So a change waits for its turn here:
an idle VM collects changes until none has come for a moment; what waited while a batch was in flight is the next one,
sent back to back, detaches first. Whether the VM has settled is read from the VMI, so that two replicas agree without
knowing each other.

Whatever has not settled for LIMIT_SECONDS holds nobody up any longer. Nothing here sends anything.
Source: KubeVirt pkg/virt-controller/watch/vmi/volume-hotplug.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum

from kubevirt_csi.domain.machines import Machine, Survey
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.ports.infra import Machines
from kubevirt_csi.waiting import SHORTEST_WAIT_SECONDS, Notice, until

COLLECT_SECONDS = 0.05
"""An idle VM waits so long for another change after each one: a burst takes a moment to come in."""
LONGEST_COLLECT_SECONDS = 0.5
LIMIT_SECONDS = 120.0
TAKE_BACK_SECONDS = 60.0
"""What a stuck attach gets beyond its limit for being taken back, before the others stop waiting for it."""
TURN_SECONDS = 600.0


class Kind(Enum):
    """What a turn is for, in the order of a batch."""

    DETACH = 0
    ATTACH = 1
    ATTACH_ALONE = 2
    """Would hold up the others: it has yet to be populated, or got stuck before."""


@dataclass(eq=False, slots=True, kw_only=True)
class Turn:
    """One change of a VM, from its waiting to its end."""

    volume_id: str
    kind: Kind
    came: float
    queue: _Queue = field(repr=False)
    started: float | None = None
    """When its batch was formed."""
    is_sent: bool = False
    survey: Survey | None = None
    """Of all machines, read when the batch was formed and after the change came; None when there is none such."""

    def sent(self) -> None:
        """The change was sent, or needs no sending: the next of the batch may go."""
        self.is_sent = True
        self.queue.notice.notify()

    async def comes(self) -> None:
        """Waits until all before it in its batch are sent; what does not touch the VM is better done before.

        Raises:
            Unavailable: not within TURN_SECONDS.
        """

        async def may_go() -> bool | None:
            return self.is_sent or self.queue.may_go(self) or None

        if not await until(may_go, changed=[self.queue.notice.changed], seconds=TURN_SECONDS):
            raise Unavailable(
                f"the change for volume {self.volume_id} was not sent within {TURN_SECONDS:.0f} s, because those "
                f"in front of it were not: {self.queue.describe()}"
            )

    @property
    def contended(self) -> bool:
        """Whether another change waits for this one: in the queue, or an attach in the same pod."""
        return bool(self.queue.waiting) or any(
            turn is not self and turn.kind is not Kind.DETACH for turn in self.queue.flying
        )


@dataclass(slots=True)
class _Queue:
    """The changes of one VM; ``unsettled`` tells since when each of its volumes has been under way."""

    waiting: list[Turn] = field(default_factory=list)
    flying: list[Turn] = field(default_factory=list)
    unsettled: dict[str, float] = field(default_factory=dict)
    circumstances: str = ""
    """Why its volumes may be under way for so long, for people."""
    notice: Notice = field(default_factory=Notice)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of forming a batch, so that many who wait read the machine once."""

    def note(self, machine: Machine | None, now: float) -> None:
        """Takes in which volumes of the machine are under way."""
        names = machine.unsettled() if machine is not None else frozenset()
        self.circumstances = machine.circumstances() if machine is not None else ""
        self.unsettled = {name: self.unsettled.get(name, now) for name in names}

    def own_blockers(self, now: float) -> list[str]:
        """The volumes that this process has in flight, and that the next batch has to wait for."""
        limit = LIMIT_SECONDS + TAKE_BACK_SECONDS
        return [turn.volume_id for turn in self.flying if turn.started is not None and now - turn.started < limit]

    def other_blockers(self, now: float) -> list[str]:
        """The volumes that are under way in the machine, whoever sent them, and have not been so for too long.

        One that is to be taken out need not arrive first.
        """
        leaving = {turn.volume_id for turn in self.waiting if turn.kind is Kind.DETACH}
        recent = {name for name, since in self.unsettled.items() if now - since < LIMIT_SECONDS}
        return sorted(recent - leaving)

    def collects_for(self, now: float) -> float:
        """Seconds until there is nothing more to be expected of a burst."""
        came = [turn.came for turn in self.waiting]
        return min(max(came) + COLLECT_SECONDS, min(came) + LONGEST_COLLECT_SECONDS) - now

    def form_batch(self, now: float, survey: Survey | None, *, read_at: float) -> None:
        """Lets what waits start: all of it but the lone ones, or one of those when nothing else waits."""
        lone = [turn for turn in self.waiting if turn.kind is Kind.ATTACH_ALONE]
        batch = [turn for turn in self.waiting if turn.kind is not Kind.ATTACH_ALONE]
        starved = lone and now - lone[0].came >= LIMIT_SECONDS
        if not batch or starved:
            batch = lone[:1]
        for turn in batch:
            turn.started = now
            turn.survey = survey if turn.came < read_at else None
        self.waiting = [turn for turn in self.waiting if turn.started is None]
        self.flying += sorted(batch, key=lambda turn: turn.kind.value)

    def may_go(self, turn: Turn) -> bool:
        """Whether it is the turn's time within its batch."""
        before = self.flying[: self.flying.index(turn)] if turn in self.flying else None
        return before is not None and all(t.is_sent for t in before)

    def describe(self) -> str:
        """What is under way, and why perhaps for so long; for people."""
        names = sorted({*(turn.volume_id for turn in self.flying), *self.unsettled})
        text = f"{', '.join(names)} under way" if names else "waiting changes"
        return "; ".join(filter(None, [text, self.circumstances]))

    def leave(self, turn: Turn) -> None:
        """Takes the turn out, done or given up."""
        for turns in (self.waiting, self.flying):
            if turn in turns:
                turns.remove(turn)
        self.notice.notify()


class Pacing:
    """The queues of all VMs in this process."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def turn(self, vm: str, volume_id: str, kind: Kind, *, under_way: bool = False) -> AsyncIterator[Turn]:
        """Waits until the change is in a batch; the VM is taken to be changing until the block ends.

        Within the block, ``comes`` has to be awaited before anything is sent to the VM.

        Args:
            vm: the VM's name.
            volume_id: for error texts.
            kind: the order in its batch.
            under_way: the change was sent before, by whomever: the block only keeps the others waiting.

        Raises:
            Unavailable: the turn did not come within TURN_SECONDS, or the VM could not be read.
        """
        queue = self._queues.setdefault(vm, _Queue())
        turn = Turn(volume_id=volume_id, kind=kind, came=_now(), queue=queue)
        try:
            if under_way:
                turn.started, turn.is_sent = _now(), True
                queue.flying.append(turn)
            else:
                queue.waiting.append(turn)
                await self._until_batched(vm, turn)
            yield turn
        finally:
            queue.leave(turn)
            if not (queue.waiting or queue.flying or queue.unsettled):
                self._queues.pop(vm, None)

    async def _until_batched(self, vm: str, turn: Turn) -> None:
        queue = turn.queue

        async def goes() -> bool | None:
            async with queue.lock:
                if turn.started is None:
                    await self._advance(vm, queue)
            return turn.started is not None or None

        async def collected() -> bool | None:
            return turn.started is not None or queue.collects_for(_now()) < SHORTEST_WAIT_SECONDS or None

        notice = queue.notice.changed
        await until(collected, changed=[notice], seconds=LONGEST_COLLECT_SECONDS, look_again=COLLECT_SECONDS)
        changes = [notice, lambda: self._machines.changed(vm)]
        if not await until(goes, changed=changes, seconds=TURN_SECONDS):
            raise Unavailable(
                f"VM {vm}: the change for volume {turn.volume_id} had no turn within {TURN_SECONDS:.0f} s; in front of "
                f"it: {queue.describe()}"
            )

    async def _advance(self, vm: str, queue: _Queue) -> None:
        """Forms the next batch if the VM has settled, which is read afresh once the cache says so.

        What has to be read for an attach anyway tells it as well, and serves the whole batch. For a detach the cache
        will do: it delays what is under way a little at worst.
        """
        blockers = queue.own_blockers(_now())
        survey, read_at = None, _now()
        if not blockers:
            queue.note(await self._machines.get(vm), _now())
            blockers = queue.other_blockers(_now())
        if not blockers and any(turn.kind is not Kind.DETACH for turn in queue.waiting):
            read_at = _now()
            survey = await self._machines.survey()
            queue.note(survey.node(vm), _now())
            blockers = queue.other_blockers(_now())
        if blockers:
            context.progress(f"VM {vm} to settle before it is changed again ({queue.describe()})")
            return
        queue.form_batch(_now(), survey, read_at=read_at)
        queue.notice.notify()


def _now() -> float:
    return asyncio.get_running_loop().time()
