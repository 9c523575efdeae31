"""Tells the disks of mounted volumes, every now and then, which blocks their file systems no longer use.

An infra class may give out thin disks, which grow with each block that was ever written; only a discard makes them
smaller again. The mount option ``discard`` does that at each deletion, which costs the pods; this does it in the
background, one volume at a time, and is off unless the operator gives an interval.

Only volumes in this node's records are touched, and no failure here is one of a volume. A trim keeps a mount busy, so
whoever unmounts one stops the trim first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NoReturn

import structlog

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.domain.mountinfo import MountEntry, MountTable
from kubevirt_csi.errors import DriverError
from kubevirt_csi.ports.host import Disks, Mounts, Record, Records, Trimmer

log = structlog.get_logger(__name__)


class Trimming:
    """Trims the volumes of this node.

    Args:
        disks: the disks that are here.
        mounts: where they are mounted.
        records: which of them are ours.
        trimmer: does it.
        chance: a number from 0 to 1, for the first pause: nodes that start together should not trim together.
    """

    def __init__(
        self,
        *,
        disks: Disks,
        mounts: Mounts,
        records: Records,
        trimmer: Trimmer,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._disks = disks
        self._mounts = mounts
        self._records = records
        self._trimmer = trimmer
        self._chance = chance
        self._running: tuple[str, asyncio.Future[int | None]] | None = None

    async def run(self, *, interval_seconds: float) -> NoReturn:
        """Trims all volumes once in each interval, until it is cancelled."""
        await asyncio.sleep(interval_seconds * self._chance())
        while True:
            await self.trim_all()
            await asyncio.sleep(interval_seconds)

    async def trim_all(self) -> None:
        """Trims every volume of this node that is mounted and can be written, one after the other."""
        try:
            records = await self._records.known()
        except DriverError as error:
            log.warning("volumes not trimmed", error=str(error))
            return
        for record in records:
            try:
                await self._trim(record)
            except DriverError as error:
                log.warning("volume not trimmed", volume_id=record.volume_id, error=str(error))

    async def stop(self, volume_id: str) -> None:
        """Returns when the volume is not being trimmed: a trim that runs is ended, its program is killed and reaped."""
        if self._running is not None and self._running[0] == volume_id:
            await _end(self._running[1])

    async def _trim(self, record: Record) -> None:
        shown = disk_rules.showing(await self._disks.all(), record.serial)
        mounted = _to_trim(await self._mounts.table(), shown)
        if mounted is None:
            return
        task = asyncio.ensure_future(self._trimmer.trim(mounted.mount_point))
        self._running = (record.volume_id, task)
        try:
            await asyncio.wait([task])
        finally:
            self._running = None
            await _end(task)
        about = log.bind(volume_id=record.volume_id, path=mounted.mount_point)
        if task.cancelled():
            about.info("trim stopped")
        elif (trimmed := task.result()) is None:
            about.debug("disk without discard")
        else:
            about.info("trimmed", bytes=trimmed)


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancels the task, and waits for its end."""
    task.cancel()
    await asyncio.wait([task])


def _to_trim(table: MountTable, disks: tuple[Disk, ...]) -> MountEntry | None:
    """The oldest writable mount of the volume's whole file system, which is its staging mount where there is one."""
    if len(disks) != 1:
        return None
    mounts = table.of(disks[0].number)
    return next((entry for entry in mounts if entry.root == "/" and not entry.read_only), None)
