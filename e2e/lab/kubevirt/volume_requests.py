"""Requests to plug or unplug a volume, and the queue of them that a VM's status holds in legacy mode.

Sources: KubeVirt pkg/virt-api/rest/volumes.go, pkg/controller (ApplyVolumeRequestOnVMISpec) and
pkg/virt-controller/watch/vm (trimDoneVolumeRequests). A request is written as it is queued, ``{"addVolumeOptions": …}``
or ``{"removeVolumeOptions": …}``. The surprising fact: a request is checked against the spec and against the queue, but
not against the spec that the queue will make. So what was just queued to be added does "not exist" for a removal.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from e2e.lab.kubevirt.disks import by_name, claim_name, disks_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.resources import Object, dig

ADD, REMOVE = "addVolumeOptions", "removeVolumeOptions"


def queue_of(vm: Object) -> list[Object]:
    """The requests that wait in the VM's status."""
    queue: list[Object] = dig(vm, "status", "volumeRequests", default=[])
    return queue


def is_add(request: Object) -> bool:
    return ADD in request


def name_in(request: Object) -> str:
    """The volume that the request is about."""
    return str(options_of(request)["name"])


def options_of(request: Object) -> Object:
    options: Object = request.get(ADD) or request[REMOVE]
    return options


def volume_of(options: Object) -> Object:
    """The hot-plug volume that AddVolumeOptions ask for; with two sources the claim is taken."""
    source = options["volumeSource"]
    kind = next((kind for kind in ("persistentVolumeClaim", "dataVolume") if source.get(kind) is not None), None)
    return {"name": options["name"]} | ({kind: source[kind] | {"hotpluggable": True}} if kind else {})


def check_against(spec: Object, request: Object) -> None:
    """Checks the request against the volumes of a VM's template or a VMI.

    Raises:
        ValueError: name or source is there already; or there is no such volume, or it is not a hot-plug.
    """
    name = name_in(request)
    if is_add(request):
        claim = claim_name(volume_of(options_of(request)))
        for volume in volumes_of(spec):
            if volume["name"] == name:
                raise ValueError(f"Unable to add volume [{name}] because volume with that name already exists")
            if claim is not None and claim_name(volume) == claim:
                raise ValueError(f"Unable to add volume source [{claim}] because it already exists")
        return
    found = next((volume for volume in volumes_of(spec) if name in (volume["name"], claim_name(volume))), None)
    if found is None:
        raise ValueError(f"Unable to remove volume [{name}] because it does not exist")
    if not is_hotplug(found):
        raise ValueError(f"Unable to remove volume [{found['name']}] because it is not hotpluggable")


def queued(queue: Sequence[Object], request: Object) -> list[Object]:
    """The queue with the request at its end; a removal takes the place of an addition of the same name.

    Raises:
        ValueError: a request about that volume waits already.
    """
    name = name_in(request)
    same = [is_add(other) for other in queue if name_in(other) == name]
    if is_add(request) and True in same:
        raise ValueError(f"add volume request for volume [{name}] already exists")
    if False in same:
        processed = f"a remove volume request for volume [{name}] already exists and is still being processed"
        raise ValueError(f"unable to add volume since {processed}" if is_add(request) else processed)
    return [other for other in queue if name_in(other) != name] + [request]


def applied(spec: Object, request: Object) -> Object:
    """The spec after the request; a volume that is there already, or is not there, changes nothing."""
    name, options = name_in(request), options_of(request)
    present = by_name(volumes_of(spec))
    if is_add(request):
        if name in present:
            return spec
        volumes = [*volumes_of(spec), volume_of(options)]
        disks = [*disks_of(spec), options["disk"] | {"name": name}]
    else:
        volumes = [volume for volume in volumes_of(spec) if volume["name"] != name]
        disks = [disk for disk in disks_of(spec) if disk["name"] != name]
    new = copy.deepcopy(spec)
    new["volumes"] = volumes
    new.setdefault("domain", {}).setdefault("devices", {})["disks"] = disks
    return new


def unfinished(queue: Sequence[Object], spec: Object) -> list[Object]:
    """The requests that the VM's template does not fulfil yet."""
    volumes, disks = by_name(volumes_of(spec)), by_name(disks_of(spec))

    def done(request: Object) -> bool:
        name = name_in(request)
        return (name in volumes and name in disks) if is_add(request) else name not in volumes and name not in disks

    return [request for request in queue if not done(request)]
