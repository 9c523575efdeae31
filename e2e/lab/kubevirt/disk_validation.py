"""What KubeVirt refuses in the volumes and disks of a spec, whether it is a VM's template or a VMI's.

Sources: KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters and pkg/storage/admitters (disks, storagehotplug).
The surprising fact: which bus a hot-plug may have is no part of what every spec must keep to, so a VM's template may
ask for hot-plugs that no VMI can get.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.disks import bus_of, by_name, disks_of, volumes_of
from e2e.lab.kubevirt.resources import Object

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


def spec_causes(spec: Object, where: str) -> list[Cause]:
    """Checks the volumes and disks of a spec that is at the field ``where``."""
    return [*_volume_causes(spec, where), *_disk_causes(spec, where)]


def device_causes(disk: Object, name: str, *, asking: str, field: str) -> Iterator[Cause]:
    """Checks that the disk can be hot-plugged; ``asking`` begins the texts. One cause at most."""
    bus = bus_of(disk)
    if "disk" in disk:
        if bus not in ("scsi", "virtio"):
            text = f"{asking} for disk [{name}] requires bus to be 'scsi' or 'virtio'. [{bus}] is not permitted."
            yield Cause(message=text, field=field)
        elif disk.get("dedicatedIOThread") and bus != "virtio":
            yield Cause(message=f"{asking} for [{name}] requires virtio bus for IOThreads.", field=field)
    elif "lun" in disk:
        if bus != "scsi":
            text = f"{asking} for LUN [{name}] requires bus to be 'scsi'. [{bus}] is not permitted."
            yield Cause(message=text, field=field)
        elif disk.get("dedicatedIOThread"):
            yield Cause(message=f"{asking} for [{name}] requires virtio bus for IOThreads.", field=field)
    else:
        text = f"{asking} for [{name}] requires diskDevice of type 'disk' or 'lun' to be used."
        yield Cause(message=text, field=field)


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
