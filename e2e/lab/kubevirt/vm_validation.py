"""What KubeVirt's webhooks refuse in the disks and volumes of VMs and running VMIs, declarative mode.

Sources: KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters (vms-admitter, vmi-update-admitter) and
pkg/storage/admitters (storagehotplug, vm-storage-admitter). The surprising fact: a hot-plug with an impossible bus
passes the VM's webhook and is refused only when virt-controller writes it to the VMI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.disks import bus_of, by_name, claim_name, disks_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.resources import Object, deleting, dig

SERIAL = re.compile(r"[A-Za-z0-9_.+-]*")
SERIAL_LENGTH = 256
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_LENGTH = 63
LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
CACHES = ("none", "writethrough", "writeback")
ERROR_POLICIES = ("stop", "ignore", "report", "enospace")
# What is beside the name in a volume is its source.
NOT_A_SOURCE = frozenset({"name"})


def validate_vm(vm: Object, _old: Object | None, _cluster: Cluster) -> list[Cause]:
    """Checks the template; a VM that is being deleted may be anything."""
    if deleting(vm):
        return []
    spec = dig(vm, "spec", "template", "spec", default={})
    return list(_volume_causes(spec, "spec.template.spec")) + list(_disk_causes(spec, "spec.template.spec"))


def validate_vmi_update(vmi: Object, old: Object | None, _cluster: Cluster) -> list[Cause]:
    """Checks a change of a VMI's hot-plugs; every other volume must stay as it is."""
    spec, old_spec = vmi.get("spec", {}), dig(old, "spec", default={})
    if deleting(vmi) or spec == old_spec:
        return []
    causes = [*_volume_causes(spec, "spec"), *_disk_causes(spec, "spec")]
    return causes or list(_permanent_causes(spec, old_spec)) or list(_hotplug_causes(spec, old_spec))


def _volume_causes(spec: Object, where: str) -> Iterator[Cause]:
    names: dict[str, int] = {}
    for index, volume in enumerate(volumes_of(spec)):
        field, name = f"{where}.volumes[{index}]", str(volume.get("name", ""))
        if name in names:
            message = f"{field}.name '{name}' must not have the same name as {where}.volumes[{names[name]}]"
            yield Cause(message=message, field=f"{field}.name")
        names.setdefault(name, index)
        if len([key for key, value in volume.items() if key not in NOT_A_SOURCE and value is not None]) != 1:
            yield Cause(message=f"{field} must have exactly one source type set", field=field)
        if len(name) > LABEL_LENGTH:
            yield Cause(message="must be no more than 63 characters", field=f"{field}.name")
        if not LABEL.fullmatch(name):
            yield Cause(message=LABEL_MESSAGE, field=f"{field}.name")


def _disk_causes(spec: Object, where: str) -> Iterator[Cause]:
    volumes = by_name(volumes_of(spec))
    for index, disk in enumerate(disks_of(spec)):
        field = f"{where}.domain.devices.disks[{index}]"
        if disk.get("name") not in volumes:
            yield Cause(message=f"{field}.name '{disk.get('name')}' not found.", field=f"{field}.name")
        yield from _serial_causes(disk.get("serial", ""), field)
        if disk.get("dedicatedIOThread") and bus_of(disk) == "scsi":
            message = "IOThreads are not supported for disks on a scsi bus"
            yield Cause(message=message, field=f"{field}.dedicatedIOThread", reason="FieldValueNotSupported")
        if disk.get("cache") not in (None, "", *CACHES):
            message = f"{field}.cache has invalid value {disk['cache']}"
            yield Cause(message=message, field=f"{field}.cache")
        if disk.get("errorPolicy") not in (None, *ERROR_POLICIES):
            message = f'{field}.errorPolicy has invalid value "{disk["errorPolicy"]}"'
            yield Cause(message=message, field=f"{field}.errorPolicy")


def _serial_causes(serial: str, field: str) -> Iterator[Cause]:
    if len(serial) > SERIAL_LENGTH:
        message = f"{field} must be less than or equal to {SERIAL_LENGTH} in length, if specified"
        yield Cause(message=message, field=f"{field}.serial")
    if not SERIAL.fullmatch(serial):
        message = f"{field} must be made up of the following characters [A-Za-z0-9_.+-], if specified"
        yield Cause(message=message, field=f"{field}.serial")


def _permanent_causes(spec: Object, old_spec: Object) -> Iterator[Cause]:
    permanent, old_permanent = (
        {volume["name"] for volume in volumes_of(each) if not is_hotplug(volume)} for each in (spec, old_spec)
    )
    if len(permanent) != len(old_permanent):
        yield Cause(message="Number of permanent volumes has changed", field="spec.volumes")


def _hotplug_causes(spec: Object, old_spec: Object) -> Iterator[Cause]:
    disks, old_disks, old_volumes = by_name(disks_of(spec)), by_name(disks_of(old_spec)), by_name(volumes_of(old_spec))
    for volume in filter(is_hotplug, volumes_of(spec)):
        name = volume["name"]
        if name in old_volumes:
            if volume != old_volumes[name]:
                yield Cause(message=f"hotplug volume {name}, changed", field="spec.volumes")
            if disks.get(name) != old_disks.get(name):
                yield Cause(message=f"hotplug disk {name}, changed", field="spec.domain.devices.disks")
        elif claim_name(volume) is None:
            yield Cause(message=f"volume {name} is not a PVC or DataVolume", field="spec.volumes")
        elif name not in disks:
            yield Cause(message=f"disk {name} does not exist", field="spec.domain.devices.disks")
        else:
            yield from _bus_causes(disks[name])


def _bus_causes(disk: Object) -> Iterator[Cause]:
    name, bus, field = disk["name"], bus_of(disk), "spec.domain.devices.disks"
    begin = "Hotplug configuration for"
    if "disk" in disk:
        if bus not in ("scsi", "virtio"):
            text = f"{begin} disk [{name}] requires bus to be 'scsi' or 'virtio'. [{bus}] is not permitted."
            yield Cause(message=text, field=field)
        elif disk.get("dedicatedIOThread") and bus != "virtio":
            yield Cause(message=f"{begin} [{name}] requires virtio bus for IOThreads.", field=field)
    elif "lun" in disk:
        if bus != "scsi":
            text = f"{begin} LUN [{name}] requires bus to be 'scsi'. [{bus}] is not permitted."
            yield Cause(message=text, field=field)
    else:
        text = f"{begin} [{name}] requires diskDevice of type 'disk' or 'lun' to be used."
        yield Cause(message=text, field=field)
