"""``addvolume`` and ``removevolume`` as virt-api answers them in every mode.

Source: KubeVirt pkg/virt-api/rest/volumes.go (v1.6 and later; subresource.go before). A request becomes a JSON patch
guarded by a ``test`` of what was read: of the VMI's spec, of the VM's spec (declarative), or of the queue in the VM's
status (legacy). What the webhooks refuse comes back as kube-apiserver says it. 202 only means "written down".

Surprising facts: removevolume accepts the claim's name too, and then does nothing; any dryRun that does not begin with
``All`` is ignored, and an empty list crashes the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import yaml

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import JSON_PATCH, ApiError
from e2e.lab.kubevirt.gates import Gates, gates_of
from e2e.lab.kubevirt.resources import VM, VMI, Key, Object, Resource, controller_of, dig
from e2e.lab.kubevirt.statuses import bad_request, conflict, internal_error, not_found
from e2e.lab.kubevirt.volume_requests import ADD, REMOVE, applied, check_against, options_of, queue_of, queued

Action = Literal["addvolume", "removevolume"]
KINDS = {"addvolume": "AddVolumeOptions", "removevolume": "RemoveVolumeOptions"}
VERBS = {"addvolume": "Add", "removevolume": "Remove"}
SOURCES = ("dataVolume", "persistentVolumeClaim")
GATES_NEEDED = "Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API."
NOT_FOUND = 404
INVALID = 422


class CrashError(Exception):
    """virt-api panics on such a request: the caller sees its connection dropped."""


async def change_volume(
    cluster: Cluster, resource: Resource, key: Key, *, action: Action, body: bytes, owner: Object | None = None
) -> None:
    """Carries out a request as it came in; the gates come first, so that an impossible body matters only behind them.

    ``owner`` is the VM or VMI, if it was just read.

    Raises:
        ApiError: with the Status to answer.
        CrashError: see there.
    """
    check_enabled(gates_of(cluster), action)
    await carry_out(cluster, resource, key, read_request(action, body), owner=owner)


async def carry_out(
    cluster: Cluster, resource: Resource, key: Key, request: Object, *, owner: Object | None = None
) -> None:
    """Writes the request down for the VM, or makes it part of the VMI's spec; ``owner`` is as for ``change_volume``.

    Raises:
        ApiError: with the Status to answer.
        CrashError: see there.
    """
    gates = gates_of(cluster)
    owner = owner or await _read(cluster, resource, key)
    if resource is VMI:
        _check_instance(owner, gates)
    try:
        subresource, patch = _patch(resource, owner, request, gates)
    except ValueError as error:
        raise conflict(resource, key, str(error)) from error
    path = resource.path(key) + subresource
    query = {"dryRun": "All"} if _is_dry_run(request) else {}
    try:
        answer = await cluster.connection.request("PATCH", path, body=patch, query=query, content_type=JSON_PATCH)
    except ApiError as error:
        if error.status == INVALID:
            raise
        what = ("vm" if resource is VM else "vmi") + subresource.replace("/", " ")
        raise internal_error(f"unable to patch {what}: {error.message}") from error
    if not query:
        cluster.caches[resource].absorb(answer)


def check_enabled(gates: Gates, action: Action) -> None:
    """Refuses the request where no gate lets it through.

    Raises:
        ApiError: 400 with the text of that version.
    """
    if gates.mode == "off":
        before = f"Unable to {VERBS[action]} Volume because HotplugVolumes feature gate is not enabled."
        raise bad_request(before if gates.scsi_only else GATES_NEEDED)


def read_request(action: Action, body: bytes) -> Object:
    """Decodes and checks the body, JSON or YAML; fields that the type does not have are dropped.

    Raises:
        ApiError: 400 with virt-api's text.
    """
    kind = KINDS[action]
    try:
        document = yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise bad_request(f"Can not unmarshal Request body to struct, error: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict) or not isinstance(document.get("name", ""), str):
        raise bad_request(f"Can not unmarshal Request body to struct, error: not of type v1.{kind}")
    if not document.get("name"):
        raise bad_request(f"{kind} requires name to be set")
    dry_run = {"dryRun": document["dryRun"]} if document.get("dryRun") is not None else {}
    if action == "removevolume":
        return {REMOVE: {"name": document["name"]} | dry_run}
    if document.get("disk") is None:
        raise bad_request("AddVolumeOptions requires disk to not be nil")
    if document.get("volumeSource") is None:
        raise bad_request("AddVolumeOptions requires VolumeSource to not be nil")
    return {ADD: _add_options(document) | dry_run}


def _add_options(document: Mapping[str, Any]) -> Object:
    """The name overrides the disk's, and a source is hot-pluggable whatever it says."""
    given = document["volumeSource"]
    sources = {kind: given[kind] | {"hotpluggable": True} for kind in SOURCES if isinstance(given.get(kind), dict)}
    name = document["name"]
    return {"name": name, "disk": document["disk"] | {"name": name}, "volumeSource": sources}


def _is_dry_run(request: Object) -> bool:
    dry_run: list[str] | None = options_of(request).get("dryRun")
    if dry_run is None:
        return False
    if not dry_run:
        raise CrashError
    return dry_run[0] == "All"


def _patch(resource: Resource, owner: Object, request: Object, gates: Gates) -> tuple[str, list[Object]]:
    """Subresource and JSON patch that write the request down; ValueError says what is in its way."""
    path = ("spec",) if resource is VMI else ("spec", "template", "spec")
    spec = dig(owner, *path, default={})
    check_against(spec, request)
    if resource is VM and gates.mode == "legacy":
        queue = queue_of(owner)
        return "/status", _replacing("/status/volumeRequests", queue or None, queued(queue, request))
    changed, root = applied(spec, request), "/" + "/".join(path)
    disks = ("domain", "devices", "disks")
    return "", [
        *_replacing(f"{root}/volumes", spec.get("volumes"), changed["volumes"]),
        *_replacing(f"{root}/domain/devices/disks", dig(spec, *disks), dig(changed, *disks)),
    ]


def _replacing(path: str, old: list[Object] | None, new: list[Object]) -> list[Object]:
    return [
        {"op": "test", "path": path, "value": old},
        {"op": "add" if old is None else "replace", "path": path, "value": new},
    ]


async def _read(cluster: Cluster, resource: Resource, key: Key) -> Object:
    try:
        return await cluster.connection.request("GET", resource.path(key))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise not_found(resource, key) from error


def _check_instance(instance: Object, gates: Gates) -> None:
    namespace, name = instance["metadata"]["namespace"], instance["metadata"]["name"]
    if dig(controller_of(instance), "kind") == VM.kind and gates.mode != "legacy":
        raise bad_request(f"VMI {namespace}/{name} is owned by a VM")
    if dig(instance, "status", "phase") != "Running":
        raise conflict(VMI, (namespace, name), "VMI is not running")
