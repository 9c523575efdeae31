"""The ``Volumes`` port: DataVolumes and claims of this tenant in the infra namespace.

Objects are created with the tenant's labels, and looked at only if they carry them: the caches select by them, and what
a fresh read finds is checked. Everything the driver writes later goes to the claim, which outlives its DataVolume.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from fractions import Fraction

from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import SIZE, Claim, DataVolume, InfraVolume, NewVolume
from kubevirt_csi.domain.overhead import FILE_SYSTEM_OVERHEAD
from kubevirt_csi.domain.quantities import format_quantity
from kubevirt_csi.errors import NotFound, OutOfRange, PermissionDenied
from kubevirt_csi.infra import datavolumes
from kubevirt_csi.infra.answers import Exists, Missing, Refused
from kubevirt_csi.infra.cache import Cache, unreadable
from kubevirt_csi.infra.changes import Changes
from kubevirt_csi.infra.claim_patches import Patch, annotating, resizing
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.datavolumes import Half, Value
from kubevirt_csi.infra.resources import CDI_CONFIGS, CLAIMS, DATA_VOLUMES, Call, Object, Resource, Verb
from kubevirt_csi.infra.watching import parsed
from kubevirt_csi.ports.infra import Stale

CLAIM_EXISTS = "Destination PVC "
"""How CDI says that a claim of the name exists. Source: CDI pkg/apiserver/webhooks/datavolume-validate.go."""
GROWTH_FORBIDDEN = "must support resize"
"""How Kubernetes says that a class has no ``allowVolumeExpansion``.

Source: Kubernetes plugin/pkg/admission/storage/persistentvolume/resize.
"""
CDI_CONFIG = "config"
"""The one CDIConfig."""


class InfraVolumes:
    """DataVolumes and claims with the tenant's labels, joined by name."""

    def __init__(self, connection: Connection, *, labels: Mapping[str, str]) -> None:
        self._connection = connection
        self._labels = dict(labels)
        self._changes = Changes()
        self._data_volumes: Cache[Half[DataVolume]] = self._cache(DATA_VOLUMES, datavolumes.data_volume)
        self._claims: Cache[Half[Claim]] = self._cache(CLAIMS, datavolumes.claim)
        self.caches = (self._data_volumes, self._claims)

    async def get(self, volume_id: str, *, fresh: bool = False) -> InfraVolume | None:
        """The volume, from either or both of its objects; None when neither exists for this tenant."""
        if fresh:
            data_volume = await self._read(DATA_VOLUMES, volume_id, datavolumes.data_volume)
            claim = await self._read(CLAIMS, volume_id, datavolumes.claim)
        else:
            data_volume, claim = self._data_volumes.find(volume_id), self._claims.find(volume_id)
        return self._joined(volume_id, data_volume, claim)

    async def get_with_claim_afresh(self, volume_id: str) -> InfraVolume | None:
        """The same with the DataVolume of the cache; the claim, which has the attachment entries, is read afresh."""
        claim = await self._read(CLAIMS, volume_id, datavolumes.claim)
        return self._joined(volume_id, self._data_volumes.find(volume_id), claim)

    async def is_foreign(self, volume_id: str) -> bool:
        """Whether an object of that name exists that lacks this tenant's labels, read afresh."""
        for resource in (DATA_VOLUMES, CLAIMS):
            with suppress(Missing):
                found = await self._connection.request(Call(verb=Verb.GET, resource=resource, name=volume_id))
                labels = (found.get("metadata") or {}).get("labels") or {}
                if not self._labels.items() <= labels.items():
                    return True
        return False

    async def create(self, volume: NewVolume) -> InfraVolume | None:
        """Creates the DataVolume and returns the volume; None when the name is taken, perhaps by an earlier try."""
        body = datavolumes.new(volume, self._labels)
        try:
            made = await self._connection.request(
                Call(verb=Verb.CREATE, resource=DATA_VOLUMES, body=body, repeatable=True)  # twice: it exists already
            )
        except Exists:
            return None
        except Refused as error:
            if CLAIM_EXISTS in error.message:
                return None
            raise
        return self._joined(volume.id, self._parsed(DATA_VOLUMES, volume.id, made, datavolumes.data_volume), None)

    async def delete(self, volume: InfraVolume) -> None:
        """Deletes the DataVolume (or the bare claim) with its UID as precondition; one that is gone is no error.

        Raises:
            Stale: another object bears the name now.
        """
        half: DataVolume | Claim | None = volume.data_volume or volume.claim
        if half is None:
            return
        call = Call(
            verb=Verb.DELETE,
            resource=DATA_VOLUMES if volume.data_volume else CLAIMS,
            name=volume.id,
            body={"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": half.uid}},
            repeatable=True,
        )
        with suppress(Missing):
            await self._connection.request(call)

    async def annotate(self, volume: InfraVolume, annotations: Mapping[str, str | None]) -> InfraVolume:
        """Writes annotations of the claim (None removes one), unless one of ours has changed since ``volume`` was read.

        Raises:
            Stale: it has, or the claim goes or went meanwhile.
            NotFound: the volume has no claim yet.
        """
        return await self._patch(volume, annotating(self._claim(volume), annotations))

    async def resize(self, volume: InfraVolume, growth: Growth) -> InfraVolume:
        """Writes what the claim asks of its storage, and what that promises, unless the claim has changed at all since.

        Raises:
            OutOfRange: the claim's storage class does not let its claims grow.
            ResourceExhausted: a quota refused it.
            And all that ``annotate`` raises.
        """
        quantity, promised = format_quantity(growth.claim_bytes), {SIZE: str(growth.size_bytes)}
        try:
            return await self._patch(volume, resizing(self._claim(volume), quantity, promised))
        except PermissionDenied as error:
            if GROWTH_FORBIDDEN not in str(error):
                raise
            raise OutOfRange(f"{error}; set allowVolumeExpansion: true on the claim's storage class there") from error

    async def file_system_overhead(self, volume: InfraVolume) -> Fraction:
        """The share of the volume's claim that is not its disk image, as CDI is configured for the claim's class.

        CDI's default where the configuration cannot be read: KubeVirt works without it, and then so do we.
        """
        call = Call(verb=Verb.GET, resource=CDI_CONFIGS, name=CDI_CONFIG)
        try:
            found = await self._connection.request(call)
        except (Missing, PermissionDenied):
            return FILE_SYSTEM_OVERHEAD
        return datavolumes.overhead(found, volume.claim.storage_class if volume.claim else "") or FILE_SYSTEM_OVERHEAD

    def _claim(self, volume: InfraVolume) -> Claim:
        if volume.claim is None:
            place = self._connection.place
            raise NotFound(f"{place.cluster}, namespace {place.namespace}: volume {volume.id!r} has no claim yet")
        return volume.claim

    async def _patch(self, volume: InfraVolume, patch: Patch) -> InfraVolume:
        call = Call(verb=Verb.PATCH, resource=CLAIMS, name=volume.id, body=patch)
        try:
            written = await self._connection.request(call)
        except Missing as error:
            raise Stale(str(error)) from error
        claim = self._parsed(CLAIMS, volume.id, written, datavolumes.claim)
        return self._joined(volume.id, datavolumes.half_of(volume), claim) or volume

    def changed(self, volume_id: str) -> Awaitable[None]:
        """The next change of the volume's objects in the cache, or a re-established watch."""
        return self._changes.after_now(volume_id)

    async def _read(
        self, resource: Resource, volume_id: str, parse: Callable[[Object], Half[Value]]
    ) -> Half[Value] | None:
        """One object as it is now, None when it does not exist or lacks the tenant's labels."""
        try:
            found = await self._connection.request(Call(verb=Verb.GET, resource=resource, name=volume_id))
        except Missing:
            return None
        half = self._parsed(resource, volume_id, found, parse)
        return half if self._labels.items() <= half.labels.items() else None

    def _parsed(
        self, resource: Resource, volume_id: str, found: Object, parse: Callable[[Object], Half[Value]]
    ) -> Half[Value]:
        try:
            return parsed(found, parse)
        except ValueError as error:
            raise unreadable(self._connection, resource, volume_id, error) from error

    def _joined(
        self, volume_id: str, data_volume: Half[DataVolume] | None, claim: Half[Claim] | None
    ) -> InfraVolume | None:
        try:
            return datavolumes.join(volume_id, data_volume, claim)
        except ValueError as error:
            raise unreadable(self._connection, CLAIMS, volume_id, error) from error

    def _cache(self, resource: Resource, parse: Callable[[Object], Half[Value]]) -> Cache[Half[Value]]:
        return Cache(self._connection, resource, parse=parse, changes=self._changes, labels=self._labels)
