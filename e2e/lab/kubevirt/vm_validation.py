"""What KubeVirt's webhooks refuse in a VM: in its template, and in the hot-plug requests that its status queues.

Sources: KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters (vms-admitter, status-admitter) and
pkg/storage/admitters (vm-storage-admitter, vm-storage-status). The surprising facts: a hot-plug with an impossible bus
passes as a part of the template and is refused as a queued request; and a migration stops the queue, but not a change
of the template.
"""

from __future__ import annotations

from collections.abc import Iterator

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.disk_validation import device_causes, spec_causes
from e2e.lab.kubevirt.disks import bus_of, by_name, volumes_of
from e2e.lab.kubevirt.gates import Gates, gates_of
from e2e.lab.kubevirt.migrations import in_progress
from e2e.lab.kubevirt.resources import VMI, Object, deleting, dig, key_of
from e2e.lab.kubevirt.reviews import Review
from e2e.lab.kubevirt.volume_requests import applied, is_add, name_in, options_of, queue_of, volume_of

TEMPLATE = "spec.template.spec"
REQUESTS = "Status.volumeRequests"
NOT_SUPPORTED = "FieldValueNotSupported"
NOT_FOUND = 404


async def validate_vm(review: Review) -> list[Cause]:
    """Checks the whole VM; one that is being deleted may be anything."""
    if deleting(review.new):
        return []
    return spec_causes(_template(review.new), TEMPLATE) or await validate_vm_status(review)


async def validate_vm_status(review: Review) -> list[Cause]:
    """Checks the queued requests, and that nothing changes under a snapshot."""
    if deleting(review.new):
        return []
    return await _queue_causes(review.new, review.cluster) or list(_snapshot_causes(review.new, review.old))


async def _queue_causes(vm: Object, cluster: Cluster) -> list[Cause]:
    """Each request must be possible, and so must be what all of them make of the template and of the running VMI."""
    queue = queue_of(vm)
    if not queue:
        return []
    instance = await _running_instance(vm, cluster)
    gates = gates_of(cluster)
    for request in filter(is_add, queue):
        causes = list(_request_causes(request, gates)) or list(_clashes(request, vm, instance))
        if causes:
            return causes
    template, spec = _template(vm), dig(instance, "spec", default={})
    for request in queue:
        template, spec = applied(template, request), applied(spec, request)
    if instance is None:
        return spec_causes(template, TEMPLATE)
    return spec_causes(template, TEMPLATE) or spec_causes(spec, "spec") or list(_migration_causes(instance))


async def _running_instance(vm: Object, cluster: Cluster) -> Object | None:
    """The VMI, fresh from the API, of a VM that is ready."""
    if not dig(vm, "status", "ready"):
        return None
    try:
        instance = await cluster.connection.request("GET", VMI.path(key_of(vm)))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None
    return None if deleting(instance) else instance


def _request_causes(request: Object, gates: Gates) -> Iterator[Cause]:
    options = options_of(request)
    if gates.scsi_only:
        yield from _scsi_causes(options["disk"], options["name"])
    else:
        yield from device_causes(options["disk"], options["name"], asking="AddVolume request", field=REQUESTS)


def _scsi_causes(disk: Object, name: str) -> Iterator[Cause]:
    """As KubeVirt up to v1.5 has it."""
    bus = bus_of(disk)
    if not disk.keys() & {"disk", "lun"}:
        text = f"AddVolume request for [{name}] requires diskDevice of type 'disk' or 'lun' to be used."
        yield Cause(message=text, field=REQUESTS)
    elif bus != "scsi":
        text = f"AddVolume request for [{name}] requires disk bus to be 'scsi'. [{bus}] is not permitted"
        yield Cause(message=text, field=REQUESTS)
    elif disk.get("dedicatedIOThread"):
        yield Cause(message="IOThreads are not supported by scsi bus.", field=REQUESTS)


def _clashes(request: Object, vm: Object, instance: Object | None) -> Iterator[Cause]:
    """A volume of that name may be there only if it is the same."""
    name, wanted = name_in(request), volume_of(options_of(request))
    conflicts = f"AddVolume request for [{name}] conflicts with an existing volume of the same name on"
    if by_name(volumes_of(_template(vm))).get(name, wanted) != wanted:
        yield Cause(message=f"{conflicts} the vmi template.", field=REQUESTS)
    elif by_name(volumes_of(dig(instance, "spec", default={}))).get(name, wanted) != wanted:
        yield Cause(message=f"{conflicts} currently running vmi", field=REQUESTS)


def _migration_causes(instance: Object) -> Iterator[Cause]:
    if in_progress(instance):
        text = "Cannot handle volume requests while VMI migration is in progress"
        yield Cause(message=text, field="spec", reason=NOT_SUPPORTED)


def _snapshot_causes(vm: Object, old: Object | None) -> Iterator[Cause]:
    snapshot = dig(vm, "status", "snapshotInProgress")
    if snapshot is not None and old is not None and volumes_of(_template(vm)) != volumes_of(_template(old)):
        text = f'Cannot update vm disks or volumes until snapshot "{snapshot}" completes'
        yield Cause(message=text, field="spec", reason=NOT_SUPPORTED)


def _template(vm: Object) -> Object:
    template: Object = dig(vm, "spec", "template", "spec", default={})
    return template
