"""The management cluster as the controller's operations need it.

Reads come from a watched cache unless ``fresh`` is asked for: a dangerous decision (detached? exclusive? unused?) takes
a fresh read of the objects concerned. A cache lags, but only moves forward: what it has shown and shows no longer has
really gone, and a write that is guarded by the version that it showed fails when something came in between. All methods
raise the driver's own errors only: Unavailable when the API does not answer or may have carried out a write,
PermissionDenied when the account lacks a verb, DeadlineExceeded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from fractions import Fraction
from typing import Protocol

from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import InfraVolume, NewVolume
from kubevirt_csi.domain.machines import Machine, Plug, Survey
from kubevirt_csi.errors import Unavailable


class Stale(Exception):
    """The object changed since it was read (409 by resourceVersion, or a UID that is no longer there)."""


class Postponed(Unavailable):
    """The API refused the write because of a state that passes by itself: certainly not carried out."""


class Volumes(Protocol):
    """DataVolumes and claims of this tenant, joined by name; what lacks the tenant's labels does not exist."""

    async def get(self, volume_id: str, *, fresh: bool = False) -> InfraVolume | None:
        """The volume, from either or both of its objects; None when neither exists for this tenant."""

    async def get_with_claim_afresh(self, volume_id: str) -> InfraVolume | None:
        """The same with the DataVolume of the cache; the claim, which has the attachment entries, is read afresh."""

    async def is_foreign(self, volume_id: str) -> bool:
        """Whether an object of that name exists that lacks this tenant's labels, read afresh."""

    async def create(self, volume: NewVolume) -> InfraVolume | None:
        """Creates the DataVolume and returns the volume. None: the name is taken, and the caller reads who has it.

        Raises:
            InvalidArgument: an admission rule refused it, with CDI's text.
            ResourceExhausted: an object-count quota refused it.
            Stale: 409 for another reason, such as a quota that is being counted: read again and decide by state.
        """

    async def delete(self, volume: InfraVolume) -> None:
        """Deletes the DataVolume (or the bare claim) with its UID as precondition. One that is gone is not an error.

        Raises:
            Stale: another object bears the name now.
        """

    async def annotate(self, volume: InfraVolume, annotations: Mapping[str, str | None]) -> InfraVolume:
        """Writes annotations of the claim (None removes one), unless one of ours has changed since ``volume`` was read.

        Raises:
            Stale: it has, or the claim goes or went meanwhile.
            NotFound: the volume has no claim yet.
        """

    async def resize(self, volume: InfraVolume, growth: Growth) -> InfraVolume:
        """Writes what the claim asks of its storage, and what that promises, unless the claim has changed at all since.

        Raises:
            Stale: the claim changed or went meanwhile.
            NotFound: the volume has no claim yet.
            OutOfRange: the claim's storage class does not let its claims grow.
            ResourceExhausted: a quota refused it.
            InvalidArgument: the API refused it for another reason, with its text.
        """

    async def file_system_overhead(self, volume: InfraVolume) -> Fraction:
        """The share of the volume's claim that is not its disk image, as CDI is configured for the claim's class."""

    def changed(self, volume_id: str) -> Awaitable[None]:
        """An awaitable of the next change of the volume's objects in the cache, or of a re-established watch.

        Every change after this call counts, so a waiter takes the awaitable, reads, and then awaits; one that is
        dropped without being awaited costs nothing.
        """


class Machines(Protocol):
    """VMs and VMIs of the infra namespace."""

    async def get(self, name: str, *, fresh: bool = False) -> Machine | None:
        """The machine; None when neither VM nor VMI exists. A VM outside the configured selector does not exist."""

    async def holders(self, claim: str, *, fresh: bool = False) -> list[Machine]:
        """Every machine of the namespace that has the claim in VM spec, VMI spec or VMI status.

        The selector does not apply: a disk held by a foreign VM is held.
        """

    async def survey(self) -> Survey:
        """Every machine of the namespace, read afresh, VMs first."""

    async def get_running(self, name: str) -> Machine | None:
        """As ``get`` from the cache, with the instance read afresh: what the guest that runs now has."""

    async def add_volume(self, vm: str, plug: Plug) -> None:
        """Sends ``addvolume`` to the VM's subresource; accepted means written down, not attached.

        Raises:
            Stale: 409, or 422 for a lost race inside the API: read the machine again and decide by state.
            InvalidArgument, FailedPrecondition: refused by admission, or hot-plug is off, with KubeVirt's text.
            Postponed: refused while a migration or a snapshot of the VM lasts.
            NotFound: no such VM.
        """

    async def remove_volume(self, vm: str, volume_id: str) -> None:
        """Sends ``removevolume`` to the VM's subresource. Errors as for ``add_volume``."""

    async def remove_volume_from_instance(self, vm: str, volume_id: str) -> None:
        """Sends ``removevolume`` to the VMI, for a disk that only the instance has. Errors as for ``add_volume``."""

    def changed(self, name: str) -> Awaitable[None]:
        """As for volumes: the next change of the VM or VMI in the cache, or of a re-established watch."""
