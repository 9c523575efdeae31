"""What KubeVirt's webhook refuses in a change of a running VMI.

Sources: KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters/vmi-update-admitter.go and
pkg/storage/admitters/storagehotplug.go. The surprising facts: nobody but KubeVirt's own accounts may change a VMI's
spec at all, and what a hot-plug must be is checked before what every spec must keep to, so those texts come first.
"""

from __future__ import annotations

from collections.abc import Iterator

from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.connection import ACCOUNT
from e2e.lab.kubevirt.disk_validation import device_causes, spec_causes
from e2e.lab.kubevirt.disks import bus_of, by_name, claim_name, disks_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.gates import Gates, gates_of
from e2e.lab.kubevirt.resources import Object, deleting, dig
from e2e.lab.kubevirt.reviews import Review

VOLUMES, DISKS = "spec.volumes", "spec.domain.devices.disks"


async def validate_vmi_update(review: Review) -> list[Cause]:
    """Checks a change of a VMI's hot-plugs; every other volume must stay as it is."""
    spec, old = review.new.get("spec", {}), dig(review.old, "spec", default={})
    if deleting(review.new) or spec == old:
        return []
    if review.user != ACCOUNT:
        return [Cause(message="update of VMI object is restricted", field="spec", reason="FieldValueNotSupported")]
    gates = gates_of(review.cluster)
    return (
        list(_pairing_causes(spec, gates))
        or list(_permanent_causes(spec, old))
        or list(_hotplug_causes(spec, old, gates))
        or spec_causes(spec, "spec")
    )


def _pairing_causes(spec: Object, gates: Gates) -> Iterator[Cause]:
    """Each volume has one disk; an empty CD-ROM drive is allowed since CD-ROMs are filled by hot-plug."""
    names, disks = by_name(volumes_of(spec)), disks_of(spec)
    declared = len(names)
    if gates.scsi_only and declared != len(disks):
        text = f"number of disks ({len(disks)}) does not equal the number of volumes ({declared})"
        yield Cause(message=text, field=DISKS)
        return
    empty = [disk for disk in disks if "cdrom" in disk and disk["name"] not in names]
    required = len(disks) - (len(empty) if gates.mode == "declarative" else 0)
    if declared != required:
        text = f"mismatch between volumes declared ({declared}) and required ({required})"
        yield Cause(message=text, field=VOLUMES)


def _permanent_causes(spec: Object, old: Object) -> Iterator[Cause]:
    volumes, disks, old_disks = by_name(volumes_of(spec)), by_name(disks_of(spec)), by_name(disks_of(old))
    permanent = {volume["name"]: volume for volume in volumes_of(old) if not is_hotplug(volume)}
    if not permanent.keys() <= volumes.keys():
        yield Cause(message="Number of permanent volumes has changed", field=VOLUMES)
        return
    for name, volume in permanent.items():
        if volumes[name] != volume:
            yield Cause(message=f"permanent volume {name}, changed", field=VOLUMES)
        if disks.get(name) != old_disks.get(name):
            yield Cause(message=f"permanent disk {name}, changed", field=DISKS)


def _hotplug_causes(spec: Object, old: Object, gates: Gates) -> Iterator[Cause]:
    """What is not permanent is a hot-plug, whatever it says of itself."""
    disks, old_disks, old_volumes = by_name(disks_of(spec)), by_name(disks_of(old)), by_name(volumes_of(old))
    for volume in volumes_of(spec):
        name = volume["name"]
        if name in old_volumes:
            if is_hotplug(old_volumes[name]):
                yield from _changed_causes(name, (old_volumes[name], volume), (old_disks.get(name), disks.get(name)))
        elif claim_name(volume) is None:
            yield Cause(message=f"volume {name} is not a PVC or DataVolume", field=VOLUMES)
        elif name not in disks:
            yield Cause(message=f"{'Disk' if gates.scsi_only else 'disk'} {name} does not exist", field=DISKS)
        elif gates.scsi_only:
            yield from _scsi_causes(disks[name])
        else:
            yield from device_causes(disks[name], name, asking="Hotplug configuration", field=DISKS)


def _changed_causes(
    name: str, volumes: tuple[Object, Object], disks: tuple[Object | None, Object | None]
) -> Iterator[Cause]:
    if volumes[0] != volumes[1]:
        yield Cause(message=f"hotplug volume {name}, changed", field=VOLUMES)
    elif disks[0] != disks[1]:
        yield Cause(message=f"hotplug disk {name}, changed", field=DISKS)


def _scsi_causes(disk: Object) -> Iterator[Cause]:
    """As KubeVirt up to v1.5 has it."""
    if not disk.keys() & {"disk", "lun"}:
        text = f"Disk {disk['name']} requires diskDevice of type 'disk' or 'lun' to be hotplugged."
        yield Cause(message=text, field=DISKS)
    elif bus_of(disk) != "scsi":
        yield Cause(message=f"hotplugged Disk {disk['name']} does not use a scsi bus", field=DISKS)
