"""The resources of the management cluster that the driver uses, and one call to them as a value.

A call is written with the Kubernetes verb, not the HTTP method, because that is what RBAC grants and what an error text
has to name. ``GRANTS`` is the one list of what the driver's account needs: the access check at start reads it, and
tests compare it with the Role that is shipped and with the calls that the adapters make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]
"""A decoded JSON object."""

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"


class Verb(StrEnum):
    """The verbs of the Kubernetes API."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    UPDATE = "update"
    PATCH = "patch"
    DELETE = "delete"

    @property
    def method(self) -> str:
        """Its HTTP method."""
        return {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}.get(self, "GET")

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as it stands in URLs; ``group`` is empty for the core API."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def title(self) -> str:
        """Its name with the group, as ``kubectl`` takes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


DATA_VOLUMES = Resource("cdi.kubevirt.io", "v1beta1", "datavolumes")
CLAIMS = Resource("", "v1", "persistentvolumeclaims")
VIRTUAL_MACHINES = Resource("kubevirt.io", "v1", "virtualmachines")
INSTANCES = Resource("kubevirt.io", "v1", "virtualmachineinstances")
VIRTUAL_MACHINE_ACTIONS = Resource("subresources.kubevirt.io", "v1", "virtualmachines")
INSTANCE_ACTIONS = Resource("subresources.kubevirt.io", "v1", "virtualmachineinstances")
CDI_CONFIGS = Resource("cdi.kubevirt.io", "v1beta1", "cdiconfigs", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request: what is done to which object, and whether it may be sent again when its outcome is unknown."""

    verb: Verb
    resource: Resource
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Object | list[Object] | None = None
    repeatable: bool = False
    """For writes: doing it twice comes to the same as doing it once. Reads are always repeatable."""

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again although it may have been carried out."""
        return self.repeatable or self.verb.reads

    @property
    def writes(self) -> bool:
        """Whether it changes anything; an access review is created, but nothing is stored."""
        return not self.verb.reads and self.resource is not ACCESS_REVIEWS

    @property
    def content_type(self) -> str:
        """Patches are JSON patches: they can test what they change."""
        return JSON_PATCH if self.verb is Verb.PATCH else JSON

    def path(self, namespace: str) -> str:
        """The URL's path."""
        resource = self.resource
        root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if resource.namespaced else ""
        rest = [quote(part, safe="") for part in (resource.plural, self.name, self.subresource) if part]
        return f"{root}{scope}/{'/'.join(rest)}"

    def __str__(self) -> str:
        subresource = f"/{self.subresource}" if self.subresource else ""
        group = f".{self.resource.group}" if self.resource.group else ""
        name = f" {self.name!r}" if self.name else ""
        return f"{self.verb} {self.resource.plural}{subresource}{group}{name}"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One verb on one resource (``plural`` or ``plural/subresource``) in the infra namespace."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def _grants(resource: Resource, subresources: tuple[str, ...], verbs: str) -> list[Grant]:
    names = [f"{resource.plural}/{subresource}" for subresource in subresources] or [resource.plural]
    return [Grant(resource.group, name, verb) for name in names for verb in verbs.split()]


PUBLIC = (Grant(CDI_CONFIGS.group, CDI_CONFIGS.plural, "get"),)
"""What CDI grants to every account by itself. Source: CDI pkg/operator/resources/cluster/rbac.go."""

GRANTS: tuple[Grant, ...] = (
    *_grants(DATA_VOLUMES, (), "get list watch create delete"),
    *_grants(CLAIMS, (), "get list watch patch delete"),
    *_grants(VIRTUAL_MACHINES, (), "get list watch"),
    *_grants(INSTANCES, (), "get list watch"),
    *_grants(VIRTUAL_MACHINE_ACTIONS, ("addvolume", "removevolume"), "update"),
    *_grants(INSTANCE_ACTIONS, ("removevolume",), "update"),
)
