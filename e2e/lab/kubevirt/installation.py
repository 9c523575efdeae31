"""Brings the management cluster into the state in which an operator leaves it: KubeVirt, CDI, a storage class.

Everything is applied server-side, so a second start (perhaps on another port) makes the first one's objects its own.
The aggregated API is reached through a Service of type ExternalName, the webhooks by URL.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from e2e.lab.kubevirt import admission, storage
from e2e.lab.kubevirt.connection import ApiError, Connection
from e2e.lab.kubevirt.definitions import DEFINITIONS, Definition
from e2e.lab.kubevirt.resources import (
    API_SERVICE,
    CRD,
    CSI_DRIVER,
    NAMESPACE,
    SERVICE,
    STORAGE_CLASS,
    VALIDATING_WEBHOOKS,
    Object,
    Resource,
    key_of,
)
from e2e.lab.kubevirt.settings import VIRT_API_SERVICE, VIRT_NAMESPACE, Serving

SUBRESOURCE_GROUP = "subresources.kubevirt.io"
SUBRESOURCE_VERSIONS = ("v1", "v1alpha3")
ESTABLISHED_SECONDS = 30.0
POLL_SECONDS = 0.1
WEBHOOK_SECONDS = 10


async def install_kinds(connection: Connection) -> None:
    """Applies the CustomResourceDefinitions and returns when their resources are served."""
    for definition in DEFINITIONS:
        await _apply(connection, CRD, definition.manifest())
    async with asyncio.timeout(ESTABLISHED_SECONDS):
        for definition in DEFINITIONS:
            await _served(connection, definition)


async def install_services(connection: Connection, serving: Serving) -> None:
    """Applies the storage class, the aggregated API and the webhooks. The server must listen already."""
    authority = base64.b64encode(await asyncio.to_thread(Path.read_bytes, serving.ca)).decode()
    await _apply(connection, CSI_DRIVER, storage.csi_driver())
    await _apply(connection, STORAGE_CLASS, storage.storage_class())
    await _apply(connection, NAMESPACE, {"metadata": {"name": VIRT_NAMESPACE}})
    await _apply(connection, SERVICE, _service(serving.port))
    for configuration in _webhooks(authority=authority, port=serving.port):
        await _apply(connection, VALIDATING_WEBHOOKS, configuration)
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


def _webhooks(*, authority: str, port: int) -> list[Object]:
    """One configuration for KubeVirt and one for CDI, as installed."""
    configurations: dict[str, list[Object]] = {}
    for webhook in admission.WEBHOOKS:
        configurations.setdefault(webhook.configuration, []).append(
            {
                "name": webhook.name,
                "clientConfig": {"url": f"https://localhost:{port}{webhook.path}", "caBundle": authority},
                "rules": [
                    {
                        "apiGroups": [webhook.resource.group],
                        "apiVersions": list(webhook.versions),
                        "resources": [webhook.resource.plural],
                        "operations": list(webhook.operations),
                    }
                ],
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": WEBHOOK_SECONDS,
                "admissionReviewVersions": ["v1"],
            }
        )
    return [{"metadata": {"name": name}, "webhooks": webhooks} for name, webhooks in configurations.items()]
