"""The door to the tenant cluster's API server for the few reads that the driver makes there.

A client is made for each use: the credentials are then always the present ones, and what is read here is read a few
times in a process's life.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration, CoreV1Api
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from kubevirt_csi.errors import DriverError, NotFound, PermissionDenied, Unavailable
from kubevirt_csi.version import driver_version

REQUEST_SECONDS = 15.0

_NOT_ALLOWED = (401, 403)
_NOT_FOUND = 404


class TenantCluster:
    """Reads objects of the tenant cluster, as the given kubeconfig's user or as the pod's own account."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig

    async def node(self, name: str) -> dict[str, Any]:
        """The Node object as JSON.

        Raises:
            NotFound: there is no such Node (yet).
            PermissionDenied: our account may not read it.
            Unavailable: no answer, or no credentials (yet).
        """
        async with self._client() as client:
            try:
                found = await CoreV1Api(client).read_node(name, _request_timeout=REQUEST_SECONDS)
            except ApiException as error:
                raise _translated(error, f"get nodes/{name} in the tenant cluster") from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise Unavailable(f"the tenant cluster's API server does not answer: {error!r}") from error
            node: dict[str, Any] = client.sanitize_for_serialization(found)
            return node

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ApiClient]:
        configuration = Configuration()
        try:
            if self._kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await load_kube_config(str(self._kubeconfig), client_configuration=configuration, persist_config=False)
        except (ConfigException, OSError, ValueError) as error:
            raise Unavailable(f"the credentials for the tenant cluster cannot be read: {error}") from error
        async with ApiClient(configuration) as client:
            client.user_agent = f"kubevirt-csi/{driver_version()}"
            yield client


def _translated(error: ApiException, action: str) -> DriverError:
    text = f"{action}: {error.status} {error.reason}"
    if error.status == _NOT_FOUND:
        return NotFound(text)
    if error.status in _NOT_ALLOWED:
        return PermissionDenied(f"{text}; the account needs this right")
    return Unavailable(text)
