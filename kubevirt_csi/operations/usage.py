"""NodeGetVolumeStats and NodeGetVolumeHealth: how full a mounted volume is, and what is wrong with it.

A look at a volume whose device or file system hangs never returns, and kubelet asks again every minute. So each mount
is looked at by one thread at a time: later calls join the look that is under way, and once it is older than
``ANSWER_SECONDS`` they are answered at once, with what that means. Such a look goes on; when it has returned, the next
call makes a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kubevirt_csi.domain import health as health_rules
from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.domain.mountinfo import MountEntry, MountTable
from kubevirt_csi.errors import NotFound, Unavailable
from kubevirt_csi.operations.health import VolumeHealth
from kubevirt_csi.ports.host import Finding, Mounts, Places, Records, Usage

ANSWER_SECONDS = 5.0
"""How long a look may take before the volume counts as one that does not respond."""
MOST_LOOKS = 128
"""Threads that may be looking at the same time; each of them may be stuck for ever."""


@dataclass(frozen=True, slots=True)
class _Look:
    result: asyncio.Future[Finding]
    began: float


class VolumeUsage:
    """Answers questions about published and staged volumes."""

    def __init__(
        self,
        *,
        mounts: Mounts,
        places: Places,
        usage: Usage,
        health: VolumeHealth,
        records: Records,
        answer_seconds: float = ANSWER_SECONDS,
        most_looks: int = MOST_LOOKS,
    ) -> None:
        self._mounts = mounts
        self._places = places
        self._usage = usage
        self._health = health
        self._records = records
        self._answer_seconds = answer_seconds
        self._most_looks = most_looks
        self._looks: dict[tuple[str, int], _Look] = {}

    async def at(self, path: str, *, volume_id: str) -> Finding:
        """Looks at the volume mounted at the path. The ailments are all that this node knows of the volume.

        A volume that does not answer has no figures, and an ailment that says so.

        Raises:
            NotFound: the path does not exist, or nothing is mounted there.
            Unavailable: so many volumes of this node hang that no more threads are spent on looking.
        """
        mounted, _ = await self._mounted(path)
        found = await self._look_at(mounted)
        still, table = await self._mounted(path)
        if still.mount_id != mounted.mount_id:
            raise NotFound(f"the volume at {path} was unmounted meanwhile, and something else is mounted there now")
        ailments = (*found.ailments, *health_rules.of_mount(still, table))
        self._health.note(volume_id, source=still.mount_point, ailments=ailments)
        return Finding(figures=found.figures, ailments=self._known(volume_id, table))

    async def ailments(self, volume_id: str, *, paths: Sequence[str]) -> tuple[Ailment, ...]:
        """All that is wrong with the volume, which may be mounted at one of the paths, or have failed to be.

        Raises:
            NotFound: this node has never had to do with the volume.
            Unavailable: as for ``at``.
        """
        for path in paths:
            try:
                return (await self.at(path, volume_id=volume_id)).ailments
            except NotFound:
                continue
        known = self._known(volume_id, await self._mounts.table())
        if not known and await self._records.recall(volume_id) is None:
            where = f"it is not mounted at {' or '.join(paths)}" if paths else "no path was given"
            raise NotFound(f"volume {volume_id} is unknown on this node: {where}, and it was never used here")
        return known

    def _known(self, volume_id: str, table: MountTable) -> tuple[Ailment, ...]:
        """All that is known, without what was found at paths that nothing is mounted at any more."""
        for source in self._health.sources(volume_id):
            if source.startswith("/") and table.top(source) is None:
                self._health.silence(volume_id, source=source)
        return self._health.of(volume_id)

    async def _mounted(self, path: str) -> tuple[MountEntry, MountTable]:
        if not path.startswith("/"):
            raise NotFound(f"{path!r} is no absolute path, so no volume is there")
        table = await self._mounts.table()
        mounted = table.top(self._places.canonical(path))
        if mounted is None:
            raise NotFound(f"no volume is mounted at {path}")
        return mounted, table

    async def _look_at(self, mounted: MountEntry) -> Finding:
        look = self._look(mounted)
        age = asyncio.get_running_loop().time() - look.began
        await asyncio.wait([look.result], timeout=max(0.0, self._answer_seconds - age))
        if look.result.done():
            return look.result.result()
        return Finding(figures=None, ailments=(_not_responding(mounted, self._answer_seconds),))

    def _look(self, mounted: MountEntry) -> _Look:
        """The look that is under way, or a new one."""
        self._looks = {key: look for key, look in self._looks.items() if not look.result.done()}
        key = (mounted.mount_point, mounted.mount_id)
        if key not in self._looks:
            if len(self._looks) >= self._most_looks:
                others = f"{self._most_looks} other mounts of this node do not answer"
                raise Unavailable(f"{mounted.mount_point} is not looked at: {others}")
            self._looks[key] = _Look(self._usage.look(mounted), asyncio.get_running_loop().time())
        return self._looks[key]


def _not_responding(mounted: MountEntry, seconds: float) -> Ailment:
    return Ailment(
        Severity.INACCESSIBLE,
        Reason.NOT_RESPONDING,
        f"its {mounted.fs_type}, or the disk below it, does not answer within {seconds:g} s, asked at "
        f"{mounted.mount_point}. Look at this node's kernel log and at the volume in the infra cluster",
    )
