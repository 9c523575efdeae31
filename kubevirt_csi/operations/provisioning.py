"""Making and deleting volumes: a DataVolume in the infra cluster, and the claim that CDI makes from it.

Create is get-or-create under a name that follows from the request, so a crash or another replica between any two steps
changes nothing. CDI accepts almost everything and tells its refusals (no access mode, no quota) later, as conditions;
so a volume is reported only when its state is decided. A final error is given only when nothing was left behind: until
a half-made volume is gone again, the answer is one that makes the provisioner keep the name in mind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from kubevirt_csi.domain.access import Capability, require_supported
from kubevirt_csi.domain.capacity import CapacityRange
from kubevirt_csi.domain.classes import ClassParameters
from kubevirt_csi.domain.digests import differences, digest, families
from kubevirt_csi.domain.infra_volumes import FAILED, InfraVolume, NewVolume
from kubevirt_csi.domain.mkfs import require_makeable
from kubevirt_csi.domain.names import volume_id
from kubevirt_csi.domain.serials import new_serial
from kubevirt_csi.domain.volumes import MKFS_OPTIONS, Bus
from kubevirt_csi.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    DriverError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from kubevirt_csi.observe import context
from kubevirt_csi.operations.holding import Holding
from kubevirt_csi.ports.infra import Stale
from kubevirt_csi.waiting import LOOK_AGAIN_SECONDS, attempts, until

CREATE_SECONDS = 600.0
"""How long one operation waits for CDI; a later call goes on from what it finds."""
DELETE_SECONDS = 300.0
DISCARD_SECONDS = 60.0
CREATES = 5
DELETES = 5

CLAIM_NOT_VALID = "ErrClaimNotValid"
EXCEEDED_QUOTA = "ErrExceededQuota"
NAME_TAKEN = "ErrResourceExists"
"""A claim of that name exists that no DataVolume made."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """One CreateVolume: what kind of volume under which CSI name."""

    name: str
    capabilities: Collection[Capability]
    capacity: CapacityRange
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """A volume as the CSI caller gets to know it; the context is the same for the volume's whole life."""

    volume_id: str
    capacity_bytes: int
    volume_context: Mapping[str, str]


class Provisioner:
    """Makes, compares, describes and deletes volumes."""

    def __init__(self, *, holding: Holding) -> None:
        self._holding = holding
        self._volumes = holding.volumes

    async def create(self, request: CreateRequest) -> Provisioned:
        """Makes the volume, or finds it made, and waits until the infra cluster has decided about it.

        A volume whose infra class binds on first consumer is made when it waits for that consumer.

        Raises:
            InvalidArgument: the request, or the claim that CDI would make for it, is not valid.
            OutOfRange: no size satisfies the request.
            AlreadyExists: the name belongs to a volume with other properties; the text names them.
            ResourceExhausted: a quota of the infra namespace.
            Aborted, DeadlineExceeded, Unavailable: it is not decided yet, with what CDI says.
        """
        wanted = _new_volume(request)
        found = await self._get_or_create(wanted)
        if found.deleting:
            raise Aborted(f"volume {found.id} of the same name is still being deleted: {found.describe()}")
        _require_compatible(found, wanted, request.capacity)
        return provisioned(await self._until_decided(found, wanted, request.capacity))

    async def _get_or_create(self, wanted: NewVolume) -> InfraVolume:
        """The volume, made if it does not exist.

        What the cache does not know is made at once: if the name is taken all the same, by a DataVolume the API says
        so, by a claim CDI does.
        """
        last: Stale | None = None
        async for attempt in attempts(CREATES):
            if attempt > 0 or await self._volumes.get(wanted.id) is not None:
                found = await self._volumes.get(wanted.id, fresh=True)
                if found is not None:
                    return found
                if await self._volumes.is_foreign(wanted.id):
                    raise AlreadyExists(
                        f"the name {wanted.id} is taken in the infra cluster by what is not this tenant's"
                    )
            context.mark_written()
            try:
                made = await self._volumes.create(wanted)
            except Stale as error:
                last = error
            else:
                if made is not None:
                    return made
        why = last or "it is deleted by somebody as soon as it is made"
        raise Aborted(f"volume {wanted.id} cannot be made now: {why}") from last

    async def _until_decided(self, made: InfraVolume, wanted: NewVolume, capacity: CapacityRange) -> InfraVolume:
        found, where = made, self._place(wanted)
        started, heard = _now(), False

        async def look() -> InfraVolume | DriverError | None:
            nonlocal found, heard
            cached = await self._volumes.get(made.id)
            heard = (
                heard or _now() - started >= LOOK_AGAIN_SECONDS or (cached is not None and _uid(cached) == _uid(made))
            )
            found = await self._same(made) if heard else made
            context.progress(f"volume {made.id} to be made in {where}: {found.describe()}")
            return _refusal(found, capacity, where=where) or (found if found.decided else None)

        outcome: InfraVolume | DriverError | None = await until(
            look, changed=[lambda: self._volumes.changed(made.id)], seconds=CREATE_SECONDS
        )
        if outcome is None:
            raise DeadlineExceeded(f"volume {made.id} is not made yet in {where}: {found.describe()}")
        if isinstance(outcome, DriverError):
            await self._discard(made, outcome, still=lambda volume: _refusal(volume, capacity, where=where) is not None)
            raise outcome
        return outcome

    def _place(self, wanted: NewVolume) -> str:
        """Where the volume is made, for people."""
        storage = f"storage class {wanted.storage_class}" if wanted.storage_class else "its default storage class"
        return f"the infra cluster, namespace {self._holding.nodes.name}, with {storage}"

    async def _same(self, made: InfraVolume) -> InfraVolume:
        """The volume from the cache, or afresh while the cache has not heard of it or has an older one of its name."""
        found = await self._volumes.get(made.id)
        if found is None or _is_leaving(found) or _uid(found) != _uid(made):
            found = await self._volumes.get(made.id, fresh=True)
        if found is None or _is_leaving(found):
            raise Aborted(f"volume {made.id} was deleted while it was being made")
        return found

    async def _discard(self, made: InfraVolume, why: DriverError, *, still: Callable[[InfraVolume], bool]) -> None:
        """Removes what was made for a request that is refused, so that the refusal may be final.

        Looks once more first: another replica may have answered with a volume that has recovered since.
        """
        volume = await self._volumes.get(made.id, fresh=True)
        if volume is None:
            return
        if _uid(volume) != _uid(made) or not still(volume):
            raise Aborted(f"volume {made.id} changed while a refused request was cleaned up: {why}") from why
        await self._require_unused(volume)
        log.warning("create discarded", volume_id=volume.id, reason=str(why))
        context.mark_written()
        try:
            await self._volumes.delete(volume)
        except Stale:
            raise Aborted(f"volume {volume.id} changed while a refused request was cleaned up: {why}") from why
        if await self._left_after(volume.id, seconds=DISCARD_SECONDS) is not None:
            raise Aborted(f"volume {volume.id} is being removed again, because it could not be made: {why}") from why

    async def delete(self, volume_id: str) -> None:
        """Deletes the volume; done when DataVolume and claim are gone. One that does not exist is deleted.

        Raises:
            FailedPrecondition: a VM has it or may be getting it; the text names the node.
            Aborted, DeadlineExceeded, Unavailable: it is not gone yet, with what is left.
        """
        async for attempt in attempts(DELETES):
            volume = await self._followed(volume_id) if attempt == 0 else None
            followed = volume is not None
            volume = volume or await self._volumes.get(volume_id, fresh=True)
            if volume is None:
                log.warning("delete unknown volume", volume_id=volume_id)
                return
            await self._require_unused(volume)
            context.mark_written()
            try:
                await self._volumes.delete(volume)
            except Stale:
                continue
            left = await self._left_after(volume_id, seconds=DELETE_SECONDS, followed=followed)
            if left is not None:
                raise DeadlineExceeded(f"volume {volume_id} is being deleted but not gone: {_rest(left)}")
            return
        raise Aborted(f"volume {volume_id} kept changing while it was to be deleted")

    async def _followed(self, volume_id: str) -> InfraVolume | None:
        """The volume, if the cache has both its objects, of which the DataVolume may be gone by now.

        Its entries are read afresh: another replica may have begun an attach that this cache has not heard of, and that
        no machine shows yet.
        """
        if not _has_both(await self._volumes.get(volume_id)):
            return None
        volume = await self._volumes.get_with_claim_afresh(volume_id)
        return volume if _has_both(volume) else None

    async def _require_unused(self, volume: InfraVolume) -> None:
        nodes = await self._holding.elsewhere(volume, vm=None, fresh=True)
        if nodes:
            raise FailedPrecondition(
                f"volume {volume.id} cannot be deleted while {', '.join(nodes)} has it or may be getting it; detach it "
                "first"
            )

    async def _left_after(self, volume_id: str, *, seconds: float, followed: bool = False) -> InfraVolume | None:
        """Waits until both objects are gone, as a fresh read says; what is left after the time, else None.

        A cache that had both (``followed``) and has them no longer has seen them go, so nothing need be read.
        """
        left: InfraVolume | None = None

        async def look() -> bool | None:
            nonlocal left
            for fresh in (False,) if followed else (False, True):
                left = await self._volumes.get(volume_id, fresh=fresh)
                if left is not None:
                    context.progress(f"volume {volume_id} to be gone from the infra cluster: {_rest(left)}")
                    return None
            return True

        await until(look, changed=[lambda: self._volumes.changed(volume_id)], seconds=seconds)
        return left

    async def require(self, volume_id: str) -> InfraVolume:
        """The volume.

        Raises:
            NotFound: there is none for this tenant.
        """
        volume = await self._volumes.get(volume_id) or await self._volumes.get(volume_id, fresh=True)
        if volume is None:
            raise NotFound(f"volume {volume_id} does not exist in the infra cluster for this tenant")
        return volume


def _has_both(volume: InfraVolume | None) -> bool:
    """Whether DataVolume and claim are there."""
    return volume is not None and volume.data_volume is not None and volume.claim is not None


def provisioned(volume: InfraVolume) -> Provisioned:
    """What CreateVolume answers about a volume."""
    bus = volume.bus or Bus.SCSI
    options = {MKFS_OPTIONS: volume.mkfs_options} if volume.mkfs_options else {}
    return Provisioned(
        volume_id=volume.id,
        capacity_bytes=volume.capacity_bytes,
        volume_context={"bus": bus.value, "serial": volume.serial} | options,
    )


def _new_volume(request: CreateRequest) -> NewVolume:
    """Checks the request in the order of the CSI specification."""
    identity = volume_id(request.name)
    require_supported(request.capabilities)
    size = request.capacity.choose()
    parameters = ClassParameters.parse(request.parameters)
    require_makeable(parameters.mkfs_options, request.capabilities, size_bytes=size)
    return NewVolume(
        id=identity,
        name=request.name,
        size_bytes=size,
        storage_class=parameters.infra_storage_class,
        read_write_many=any(capability.mode.multi_node for capability in request.capabilities),
        serial=new_serial(),
        bus=parameters.bus,
        mkfs_options=parameters.mkfs_options,
        digest=digest(parameters, request.capabilities),
    )


def _require_compatible(found: InfraVolume, wanted: NewVolume, capacity: CapacityRange) -> None:
    """Compares what the specification lists; what an older volume does not tell is no mismatch."""
    differing = differences(found.digest, wanted.digest)
    if found.name is not None and found.name != wanted.name:
        differing.append("name")
    if not capacity.admits(found.capacity_bytes):
        differing.append(f"capacity ({found.capacity_bytes} bytes)")
    if differing:
        raise AlreadyExists(f"volume {found.id} exists with another {', '.join(differing)}")


def _refusal(volume: InfraVolume, capacity: CapacityRange, *, where: str) -> DriverError | None:
    """The error for a state that CDI will not leave by itself, or only after an operator has acted.

    Source: CDI pkg/controller/datavolume/controller-base.go.
    """
    if not capacity.admits(volume.capacity_bytes):
        return OutOfRange(
            f"volume {volume.id}: the infra cluster makes {volume.capacity_bytes} bytes of it, more than limit_bytes"
        )
    data_volume = volume.data_volume
    if data_volume is None:
        return None
    text = f"volume {volume.id} cannot be made in {where}: {volume.describe()}"
    reasons = {condition.reason for condition in data_volume.conditions if condition.status != "True"}
    if CLAIM_NOT_VALID in reasons:
        return InvalidArgument(f"{text}; does the class exist there, with access modes in its StorageProfile?")
    if EXCEEDED_QUOTA in reasons:
        return ResourceExhausted(f"{text}; raise the quota of the namespace, or delete volumes")
    if NAME_TAKEN in reasons:
        return AlreadyExists(f"{text}; the name is taken by a claim that is no volume of this driver")
    return Internal(text) if data_volume.phase == FAILED else None


def mismatch(volume: InfraVolume, capabilities: Collection[Capability]) -> str | None:
    """Why a volume does not serve access modes that the driver as such does serve, or None."""
    made_for = families(volume.digest)
    for capability in capabilities:
        if capability.mode.multi_node and made_for and capability.mode.family not in made_for:
            return f"volume {volume.id} was made for {', '.join(sorted(made_for))}, not for {capability.mode.value}"
    return None


def _is_leaving(volume: InfraVolume) -> bool:
    """Whether the volume is being deleted; a claim alone may be an older one of its name, which CDI waits out."""
    return volume.data_volume.deleting if volume.data_volume is not None else volume.deleting


def _uid(volume: InfraVolume) -> str | None:
    return volume.data_volume.uid if volume.data_volume is not None else None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _rest(volume: InfraVolume) -> str:
    """What is left of a volume that is on its way out; for people."""
    left = []
    if volume.data_volume is not None:
        left.append("its DataVolume")
    if volume.claim is not None:
        held = ", which a pod may still use" if volume.claim.deleting else ""
        left.append(f"its claim ({volume.claim.phase or 'no phase'}{held})")
    return f"left: {' and '.join(left)}"
