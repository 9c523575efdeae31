"""Brings the management cluster into the state in which an operator leaves it: KubeVirt, CDI, a storage class.

Everything is applied server-side, so a second start (perhaps on another port) makes the first one's objects its own.
The aggregated API is reached through a Service of type ExternalName, the webhooks by URL.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path

from e2e.lab.kubevirt import admission, gates, offers, vmi_mutation
from e2e.lab.kubevirt.configuration import cdi
from e2e.lab.kubevirt.connection import MERGE_PATCH, ApiError, Connection
from e2e.lab.kubevirt.definitions import DEFINITIONS, Definition
from e2e.lab.kubevirt.resources import (
    API_SERVICE,
    CDI,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CRD,
    CSI_DRIVER,
    DATA_VOLUME,
    KUBEVIRT,
    MUTATING_WEBHOOKS,
    NAMESPACE,
    SERVICE,
    STORAGE_CLASS,
    VALIDATING_WEBHOOKS,
    VM,
    Object,
    Resource,
    key_of,
)
from e2e.lab.kubevirt.reviews import Registration
from e2e.lab.kubevirt.settings import VIRT_API_SERVICE, VIRT_NAMESPACE, Release, Serving

SUBRESOURCE_GROUP = "subresources.kubevirt.io"
SUBRESOURCE_VERSIONS = ("v1", "v1alpha3")
ESTABLISHED_SECONDS = 30.0
POLL_SECONDS = 0.1
WEBHOOK_SECONDS = 10
KUBEVIRT_DEFAULT_ROLE = "kubevirt.io:default"  # KubeVirt pkg/virt-operator/resource/generate/rbac/cluster.go
NOT_FOUND = 404


async def install_kinds(connection: Connection) -> None:
    """Applies the CustomResourceDefinitions and returns when their resources are served."""
    for definition in DEFINITIONS:
        await _apply(connection, CRD, definition.manifest())
    async with asyncio.timeout(ESTABLISHED_SECONDS):
        for definition in DEFINITIONS:
            await _served(connection, definition)


async def install_kubevirt(connection: Connection, release: Release) -> None:
    """Creates the KubeVirt object and lets everybody read it; one that is there already stays as it is."""
    await _apply(connection, NAMESPACE, {"metadata": {"name": VIRT_NAMESPACE}})
    await _apply(connection, CLUSTER_ROLE, _readable_kubevirt())
    await _apply(connection, CLUSTER_ROLE_BINDING, _everybody(KUBEVIRT_DEFAULT_ROLE))
    path = KUBEVIRT.path(gates.KUBEVIRT_KEY)
    try:
        await connection.request("GET", path)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
    else:
        return
    # Not by POST, which kube-apiserver keeps waiting for two seconds while the kind is new.
    await _apply(connection, KUBEVIRT, gates.kubevirt_object(release))
    version = {"status": {"observedKubeVirtVersion": release.version}}
    await connection.request("PATCH", path + "/status", body=version, content_type=MERGE_PATCH)


async def install_services(connection: Connection, serving: Serving) -> None:
    """Applies storage classes, the CDI object, the aggregated API and the webhooks. The server must listen already."""
    authority = base64.b64encode(await asyncio.to_thread(Path.read_bytes, serving.ca)).decode()
    for driver in offers.csi_drivers():
        await _apply(connection, CSI_DRIVER, driver)
    for storage_class in offers.storage_classes():
        await _apply(connection, STORAGE_CLASS, storage_class)
    await _apply(connection, CDI, cdi())
    await _apply(connection, SERVICE, _service(serving.port))
    ports = {VM.group: serving.port, DATA_VOLUME.group: serving.cdi_port}
    for configuration in _webhooks(authority=authority, ports=ports):
        await _apply(connection, VALIDATING_WEBHOOKS, configuration)
    await _apply(connection, MUTATING_WEBHOOKS, _mutator(authority=authority, ports=ports))
    # Last, so that whoever finds the aggregated API in place finds the rest too.
    for version in SUBRESOURCE_VERSIONS:
        await _apply(connection, API_SERVICE, _api_service(version, authority=authority, port=serving.port))


async def _apply(connection: Connection, resource: Resource, body: Object) -> None:
    complete = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    await connection.apply(resource.path(key_of(body)), complete)


async def _served(connection: Connection, definition: Definition) -> None:
    while True:
        try:
            await connection.request("GET", definition.resource.collection(), query={"limit": "1"})
        except ApiError:
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def _readable_kubevirt() -> Object:
    rule = {"apiGroups": [KUBEVIRT.group], "resources": [KUBEVIRT.plural], "verbs": ["get", "list"]}
    return {"metadata": {"name": KUBEVIRT_DEFAULT_ROLE}, "rules": [rule]}


def _everybody(role: str) -> Object:
    group = CLUSTER_ROLE.group
    return {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": group, "kind": CLUSTER_ROLE.kind, "name": role},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:authenticated"}],
    }


def _service(port: int) -> Object:
    return {
        "metadata": {"namespace": VIRT_NAMESPACE, "name": VIRT_API_SERVICE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }


def _api_service(version: str, *, authority: str, port: int) -> Object:
    return {
        "metadata": {"name": f"{version}.{SUBRESOURCE_GROUP}"},
        "spec": {
            "group": SUBRESOURCE_GROUP,
            "version": version,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": authority,
            "service": {"namespace": VIRT_NAMESPACE, "name": VIRT_API_SERVICE, "port": port},
        },
    }


def _webhooks(*, authority: str, ports: Mapping[str, int]) -> list[Object]:
    """One configuration for KubeVirt and one for CDI, as installed."""
    configurations: dict[str, list[Object]] = {}
    for webhook in admission.WEBHOOKS:
        registered = _registered(webhook, authority=authority, ports=ports)
        configurations.setdefault(webhook.configuration, []).append(registered)
    return [{"metadata": {"name": name}, "webhooks": webhooks} for name, webhooks in configurations.items()]


def _mutator(*, authority: str, ports: Mapping[str, int]) -> Object:
    mutator = vmi_mutation.MUTATOR
    registered = _registered(mutator, authority=authority, ports=ports)
    conditions = {"matchConditions": [vmi_mutation.OTHERS_ONLY]}
    return {"metadata": {"name": mutator.configuration}, "webhooks": [registered | conditions]}


def _registered(webhook: Registration, *, authority: str, ports: Mapping[str, int]) -> Object:
    port = ports[webhook.resource.group]
    return {
        "name": webhook.name,
        "clientConfig": {"url": f"https://localhost:{port}{webhook.path}", "caBundle": authority},
        "rules": [
            {
                "apiGroups": [webhook.resource.group],
                "apiVersions": list(webhook.versions),
                "resources": [webhook.resource.plural + webhook.subresource],
                "operations": list(webhook.operations),
            }
        ],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": WEBHOOK_SECONDS,
        "admissionReviewVersions": ["v1"],
    }
