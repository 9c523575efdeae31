"""Whether a volume may be plugged into a VM as both are now: the rules, each with what has to change first.

KubeVirt accepts an ``addvolume`` in many states in which nothing will ever come of it: for a VM that is being deleted,
that was started without hot-plug, whose claim is gone. One such entry keeps the VM from all other changes, so the state
is judged here, before anything is sent; therefore what does not pass may be answered finally. Nothing here reads.
Source: KubeVirt pkg/virt-api/rest/volumes.go, pkg/virt-controller/watch/vmi/volume-hotplug.go.
"""

from __future__ import annotations

from kubevirt_csi.domain.access import Capability
from kubevirt_csi.domain.digests import families
from kubevirt_csi.domain.infra_volumes import InfraVolume
from kubevirt_csi.domain.machines import Machine
from kubevirt_csi.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from kubevirt_csi.operations.holding import held_as


def made_for_many(volume: InfraVolume) -> bool:
    """Whether the volume is known to have been made for several nodes at once."""
    return any(family.startswith("MULTI_NODE_") for family in families(volume.digest))


def require_made_for(volume: InfraVolume, capability: Capability) -> None:
    """A volume that is known to have been made for one node is not shared, whatever the tenant's PV says.

    Raises:
        InvalidArgument: it was.
    """
    if capability.mode.multi_node and families(volume.digest) and not made_for_many(volume):
        raise InvalidArgument(
            f"volume {volume.id} was made for one node at a time and cannot be used with {capability.mode.value}"
        )


def require_own_disk(machine: Machine, volume_id: str, *, node: str) -> None:
    """What bears the volume's name in VM spec has to be a hot-plugged disk with the volume's claim.

    Raises:
        FailedPrecondition: it is something else.
    """
    disk = machine.volumes.get(volume_id)
    if disk is not None and (disk.claim != volume_id or not disk.hotpluggable):
        what = f"a disk with claim {disk.claim}" if disk.hotpluggable else "a permanent disk"
        raise FailedPrecondition(f"node {node}: {volume_id} is {what} there, which this driver did not plug")


def require_takes_disks(machine: Machine, volume_id: str, *, node: str) -> None:
    """Passes when the VM can be given the disk now.

    Raises:
        NotFound: only the instance of the VM is left.
        FailedPrecondition: something has to be done first, by the caller or by an operator.
        Unavailable: what forbids it passes by itself.
    """
    where = f"node {node}"
    if machine.uid is None:
        raise NotFound(f"{where}: the VM is gone, only its instance is left")
    if machine.deleting:
        raise FailedPrecondition(f"{where}: the VM is being deleted and takes no disks any more")
    other = held_as(machine, volume_id)
    if other:
        raise FailedPrecondition(
            f"{where}: the VM has volume {volume_id} under the name {', '.join(other)}, plugged by somebody else; "
            "take it out by hand"
        )
    _require_hotplug(machine, volume_id, where)
    if machine.holds(volume_id):
        alone = ", or somebody plugged it into the VMI alone" if machine.only_instance_has(volume_id) else ""
        raise Unavailable(
            f"{where}: the VM is still detaching volume {volume_id}{alone} ({machine.whereabouts(volume_id)}); "
            "it can be attached when it is gone from there"
        )


def require_usable(volume: InfraVolume) -> None:
    """Passes when the volume can be plugged as it is now.

    Raises:
        FailedPrecondition: it never will be.
        Unavailable: it is not ready.
    """
    require_hope(volume)
    if not volume.decided:
        raise Unavailable(f"volume {volume.id} is not ready to be attached: {volume.describe()}")


def require_hope(volume: InfraVolume) -> None:
    """Passes when the volume can be plugged, now or later; to be asked about what was read afresh.

    Raises:
        FailedPrecondition: it never will be, with what CDI says.
    """
    if volume.deleting:
        raise FailedPrecondition(f"volume {volume.id} is being deleted and cannot be attached: {volume.describe()}")
    if volume.hopeless:
        raise FailedPrecondition(
            f"volume {volume.id} cannot be attached, its storage in the infra cluster is lost or was never made: "
            f"{volume.describe()}"
        )


def _require_hotplug(machine: Machine, volume_id: str, where: str) -> None:
    instance = machine.instance
    if instance is None or not machine.running:
        phase = "no VMI" if instance is None else "its VMI is being deleted" if instance.deleting else instance.phase
        raise FailedPrecondition(f"{where}: the VM does not run ({phase}), so it cannot take volume {volume_id} now")
    if instance.hotplug_disabled:
        raise FailedPrecondition(
            f"{where}: the VM was started with spec.domain.devices.disableHotplug, so no disk can ever reach it; "
            "take that out of the VM's template and restart the VM"
        )
    if instance.migrating:
        raise Unavailable(f"{where}: migration in progress; volume {volume_id} is attached when it is over")
