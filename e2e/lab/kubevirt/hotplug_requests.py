"""``addvolume`` and ``removevolume`` as virt-api answers them in declarative mode.

Source: KubeVirt pkg/virt-api/rest/volumes.go. A request becomes a JSON patch of the VM's spec (or, for a VMI without
a VM, of the VMI's), guarded by a ``test`` of both lists; what the webhooks refuse comes back as kube-apiserver says it.
202 only means "written down".

Surprising facts: removevolume accepts the claim's name too, and then does nothing; any dryRun but ``["All"]`` is
ignored, and an empty list crashes the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from e2e.lab.kubevirt.connection import JSON_PATCH, ApiError, Connection
from e2e.lab.kubevirt.disks import claim_name, disks_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.resources import VM, VMI, Key, Object, Resource, controller_of, dig

Action = Literal["addvolume", "removevolume"]
OPTIONS = {"addvolume": "AddVolumeOptions", "removevolume": "RemoveVolumeOptions"}
NOT_FOUND = 404
SERVER_ERROR = 500


class CrashError(Exception):
    """virt-api panics on such a request: the caller sees its connection dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A decoded request body."""

    name: str
    disk: Object | None
    source: Object | None
    dry_run: bool


def read_options(action: Action, body: bytes) -> Options:
    """Decodes and checks the body, JSON or YAML.

    Raises:
        ApiError: 400 with virt-api's text.
        CrashError: see there.
    """
    kind = OPTIONS[action]
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
    if action == "addvolume":
        if document.get("disk") is None:
            raise bad_request("AddVolumeOptions requires disk to not be nil")
        if document.get("volumeSource") is None:
            raise bad_request("AddVolumeOptions requires VolumeSource to not be nil")
    dry_run = document.get("dryRun")
    if dry_run == []:
        raise CrashError
    return Options(
        name=document["name"],
        disk=document.get("disk"),
        source=document.get("volumeSource"),
        dry_run=dry_run == ["All"],
    )


async def change_volume(connection: Connection, resource: Resource, key: Key, *, action: Action, body: bytes) -> None:
    """Carries the request out.

    Raises:
        ApiError: with the Status to answer.
        CrashError: see there.
    """
    options = read_options(action, body)
    owner = await _read(connection, resource, key)
    path = ("spec", "template", "spec") if resource is VM else ("spec",)
    if resource is VMI:
        _check_instance(owner)
    spec = dig(owner, *path, default={})
    try:
        changed = add(spec, options) if action == "addvolume" else remove(spec, options)
    except ValueError as error:
        raise _conflict(resource, key, str(error)) from error
    query = {"dryRun": "All"} if options.dry_run else {}
    try:
        await connection.request(
            "PATCH",
            resource.path(key),
            body=_patch(spec, changed, "/" + "/".join(path)),
            query=query,
            content_type=JSON_PATCH,
        )
    except ApiError as error:
        if error.status < SERVER_ERROR:
            raise
        raise _status(500, "InternalError", f"unable to patch {_short(resource)}: {error.message}") from error


Lists = tuple[list[Object], list[Object]]


def add(spec: Object, options: Options) -> Lists:
    """The volumes and disks with the new one.

    Raises:
        ValueError: the name or the source is there already.
    """
    source = {
        kind: value | {"hotpluggable": True}
        for kind, value in (options.source or {}).items()
        if isinstance(value, dict)
    }
    volume = {"name": options.name, **source}
    claim = claim_name(volume)
    for present in volumes_of(spec):
        if present["name"] == options.name:
            raise ValueError(f"Unable to add volume [{options.name}] because volume with that name already exists")
        if claim is not None and claim_name(present) == claim:
            raise ValueError(f"Unable to add volume source [{claim}] because it already exists")
    disk = (options.disk or {}) | {"name": options.name}
    return [*volumes_of(spec), volume], [*disks_of(spec), disk]


def remove(spec: Object, options: Options) -> Lists:
    """The volumes and disks without those of the name.

    Raises:
        ValueError: there is no such volume, by its name or its claim's, or it is not a hot-plug.
    """
    name = options.name
    found = [volume for volume in volumes_of(spec) if name in (volume["name"], claim_name(volume))]
    if not found:
        raise ValueError(f"Unable to remove volume [{name}] because it does not exist")
    if not is_hotplug(found[0]):
        raise ValueError(f"Unable to remove volume [{name}] because it is not hotpluggable")
    return [each for each in volumes_of(spec) if each["name"] != name], [
        each for each in disks_of(spec) if each["name"] != name
    ]


def _patch(spec: Object, changed: Lists, root: str) -> list[Object]:
    patch: list[Object] = []
    places = (("volumes", spec.get("volumes")), ("domain/devices/disks", dig(spec, "domain", "devices", "disks")))
    for (path, before), after in zip(places, changed, strict=True):
        patch.append({"op": "test", "path": f"{root}/{path}", "value": before})
        patch.append({"op": "add" if before is None else "replace", "path": f"{root}/{path}", "value": after})
    return patch


async def _read(connection: Connection, resource: Resource, key: Key) -> Object:
    try:
        return await connection.request("GET", resource.path(key))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        message = f'{_singular(resource)}.{resource.group} "{key[1]}" not found'
        raise _status(NOT_FOUND, "NotFound", message, details=_details(resource, key)) from error


def _check_instance(instance: Object) -> None:
    namespace, name = instance["metadata"]["namespace"], instance["metadata"]["name"]
    if dig(controller_of(instance), "kind") == VM.kind:
        raise bad_request(f"VMI {namespace}/{name} is owned by a VM")
    if dig(instance, "status", "phase") != "Running":
        raise _conflict(VMI, (namespace, name), "VMI is not running")


def _singular(resource: Resource) -> str:
    return resource.kind.lower()


def _short(resource: Resource) -> str:
    return "vm" if resource is VM else "vmi"


def _details(resource: Resource, key: Key) -> Object:
    return {"name": key[1], "group": resource.group, "kind": _singular(resource)}


def _conflict(resource: Resource, key: Key, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {_singular(resource)}.{resource.group} "{key[1]}": {why}'
    return _status(409, "Conflict", message, details=_details(resource, key))


def bad_request(message: str) -> ApiError:
    return _status(400, "BadRequest", message)


def _status(code: int, reason: str, message: str, *, details: Mapping[str, Any] | None = None) -> ApiError:
    body: Object = {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return ApiError(code, body | ({"details": dict(details)} if details else {}))
