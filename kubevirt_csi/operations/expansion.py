"""ControllerExpandVolume: the claim asks for more, and the answer comes when its storage has it.

The request is a number in the claim, so a repeat, another replica or a crash between any two steps comes to the same.
The disk in a Filesystem claim is an image that KubeVirt grows by a formula of its own, so the claim has to ask for more
than the guest shall see, and what the guest was promised is written down beside it.
"""

from __future__ import annotations

import structlog

from kubevirt_csi.domain import growth
from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.growth import Growth, Stage
from kubevirt_csi.domain.infra_volumes import BOUND, Claim, InfraVolume
from kubevirt_csi.domain.overhead import grown_claim_bytes
from kubevirt_csi.errors import Aborted, DeadlineExceeded, NotFound, OutOfRange, Unavailable
from kubevirt_csi.observe import context
from kubevirt_csi.ports.infra import Stale, Volumes
from kubevirt_csi.waiting import attempts, until

EXPAND_SECONDS = 50.0
"""How long one operation waits; short, because nothing else can happen to the volume meanwhile, its attach included."""
WRITES = 12

log = structlog.get_logger()


class Expander:
    """Grows volumes."""

    def __init__(self, *, volumes: Volumes) -> None:
        self._volumes = volumes

    async def expand(self, volume_id: str, capacity: CapacityRange) -> int:
        """Grows the volume into the range, and returns the bytes that the guest will see.

        A volume that is large enough is left as it is.

        Raises:
            NotFound: there is none for this tenant.
            OutOfRange: it cannot have such a size: no whole MiB, beyond the limit, or the infra cluster has refused.
            ResourceExhausted: a quota of the infra namespace.
            Aborted, DeadlineExceeded, Unavailable: it has not grown yet, with what the infra cluster says.
        """
        volume, wanted = await self._asked(volume_id, capacity)
        if wanted is None:
            return volume.capacity_bytes
        grown = await self._until_grown(volume_id, wanted)
        size = wanted.size_bytes if volume.is_file else max(wanted.size_bytes, grown.capacity_bytes or 0)
        if not capacity.admits(size):
            raise OutOfRange(
                f"volume {volume_id}: the infra cluster has made {size} bytes of it, more than limit_bytes "
                f"{capacity.limit}"
            )
        return size

    async def _asked(self, volume_id: str, capacity: CapacityRange) -> tuple[InfraVolume, Growth | None]:
        """The volume, whose claim asks for enough now, and what to wait for; None when it is large enough already."""
        async for _ in attempts(WRITES):
            volume = await self._volumes.get(volume_id, fresh=True)
            if volume is None:
                raise NotFound(f"volume {volume_id} does not exist in the infra cluster for this tenant")
            if volume.deleting:
                raise Aborted(f"volume {volume_id} is being deleted: {volume.describe()}")
            size = capacity.grown_from(volume.capacity_bytes)
            if size <= volume.capacity_bytes:
                return volume, None
            claim = _bound(volume)
            wanted = await self._growth(volume, size)
            if _asks_for(claim, wanted) and volume.promised_bytes == wanted.size_bytes:
                return volume, wanted
            log.info("growing", volume_id=volume_id, **_sizes(claim, wanted))
            context.mark_written()
            try:
                return await self._volumes.resize(volume, wanted), wanted
            except Stale:
                continue
        raise Aborted(f"volume {volume_id}: its claim kept changing while it was to ask for more")

    async def _growth(self, volume: InfraVolume, size: int) -> Growth:
        """What the claim has to ask for so that the guest sees the size.

        A larger request that another call has written is kept, unless the storage has refused it.
        """
        claim = _bound(volume)
        if not volume.is_file:
            least = size
        else:
            least = grown_claim_bytes(size, await self._volumes.file_system_overhead(volume))
        if claim.size_bytes > least and not growth.is_refused(claim):
            return Growth(claim_bytes=claim.size_bytes, size_bytes=max(size, volume.promised_bytes))
        return Growth(claim_bytes=least, size_bytes=size)

    async def _until_grown(self, volume_id: str, wanted: Growth) -> Claim:
        claim: Claim | None = None

        async def look() -> Stage | None:
            nonlocal claim
            found = await self._volumes.get(volume_id)
            claim = found.claim if found is not None else None
            if claim is None:
                return None  # the cache has not heard of it, or it is gone: the next call tells
            stage = growth.stage_of(claim, wanted.claim_bytes)
            context.progress(f"volume {volume_id} to grow in the infra cluster: {growth.describe(claim)}")
            return None if stage is Stage.GROWING else stage

        stage = await until(look, changed=[lambda: self._volumes.changed(volume_id)], seconds=EXPAND_SECONDS)
        text = growth.describe(claim) if claim is not None else "it has no claim any more"
        if claim is None or stage is None:
            raise DeadlineExceeded(f"volume {volume_id} has not grown yet in the infra cluster: {text}")
        if stage is Stage.REFUSED:
            raise OutOfRange(f"the infra cluster does not grow volume {volume_id}: {text}; ask for less, or make room")
        return claim


def _bound(volume: InfraVolume) -> Claim:
    """The claim; Kubernetes lets only a bound one ask for more."""
    if volume.claim is None or volume.claim.phase != BOUND:
        raise Unavailable(
            f"volume {volume.id} cannot grow before its claim in the infra cluster is bound, which may need the "
            f"volume's first attach: {volume.describe()}"
        )
    return volume.claim


def _asks_for(claim: Claim, wanted: Growth) -> bool:
    return claim.size_bytes == wanted.claim_bytes


def _sizes(claim: Claim, wanted: Growth) -> dict[str, int]:
    return {"from_bytes": claim.size_bytes, "claim_bytes": wanted.claim_bytes, "size_bytes": wanted.size_bytes}
