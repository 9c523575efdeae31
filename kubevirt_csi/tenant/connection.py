"""The door to the tenant cluster's API server for the one read that a worker makes there: its own Node.

It stands on the standard library's HTTP client and not on kubernetes_asyncio, whose import alone takes longer than all
else that this short-lived process does, on every start of every node. Token and CA are read anew for each request, so
the present ones are used.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kubevirt_csi.errors import NotFound, PermissionDenied, Unavailable
from kubevirt_csi.version import VERSION

REQUEST_SECONDS = 15.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_NOT_ALLOWED = (401, 403)
_NOT_FOUND = 404
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API server is, and the files with which a pod proves its account and knows the server."""

    host: str
    port: int
    token: Path
    authority: Path


def in_cluster(environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Access:
    """The access that kubelet gives to a pod with a service account.

    Raises:
        Unavailable: the environment does not name the API server, so this is no pod.
    """
    try:
        host, port = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
    except (KeyError, ValueError) as error:
        raise Unavailable(
            f"the tenant cluster's API server is not known, because this is not run in a pod: {error!r}"
        ) from error
    return Access(host=host, port=port, token=account / "token", authority=account / "ca.crt")


class TenantCluster:
    """Reads objects of the tenant cluster."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def node(self, name: str) -> dict[str, Any]:
        """The Node object as JSON.

        Raises:
            NotFound: there is no such Node (yet).
            PermissionDenied: our account may not read it.
            Unavailable: no answer, one that is no Node, or no credentials (yet).
        """
        action = f"get nodes/{name} in the tenant cluster"
        status, body = await asyncio.to_thread(self._get, f"/api/v1/nodes/{quote(name, safe='')}")
        if status == _NOT_FOUND:
            raise NotFound(f"{action}: there is no such Node")
        if status in _NOT_ALLOWED:
            raise PermissionDenied(f"{action}: {status}; the account needs this right")
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if status != _OK or not isinstance(found, dict):
            raise Unavailable(f"{action}: {status} {body[:100].decode(errors='replace')!r}")
        return found

    def _get(self, path: str) -> tuple[int, bytes]:
        access = self._access
        try:
            trusted = ssl.create_default_context(cafile=access.authority)
            token = access.token.read_text().strip()
        except OSError as error:  # ssl.SSLError is one
            raise Unavailable(f"the credentials for the tenant cluster cannot be read: {error}") from error
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json",
            "User-Agent": f"kubevirt-csi/{VERSION}",
        }
        connection = http.client.HTTPSConnection(access.host, access.port, timeout=REQUEST_SECONDS, context=trusted)
        try:
            with closing(connection):
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the tenant cluster's API server does not answer: {error!r}") from error
