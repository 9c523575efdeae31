"""Requests to kube-apiserver, in paths and decoded JSON: one function for answers, one for watches.

Requests go over aiohttp directly, because the stand-in passes kube-apiserver's own Status objects on to its callers, as
virt-api does, and keeps watch streams of its own. It acts as an account of KubeVirt's, so that the webhooks can tell
its writes from everybody else's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from e2e.lab.kubeconfig import session
from e2e.lab.kubevirt.resources import Object

REQUEST_SECONDS = 30.0
WATCH_SECONDS = 30  # short, so that a watch that has fallen silent is missed for half a minute at most
FIRST_ERROR_STATUS = 400
FIELD_OWNER = "kubevirt-stand-in"
ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"
ADMINISTRATORS = "system:masters"

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """kube-apiserver refused (``status`` is its HTTP code, ``body`` its Status) or could not be reached (503)."""

    def __init__(self, status: int, body: Object) -> None:
        self.status = status
        self.body = body
        self.reason: str = body.get("reason", "")
        self.message: str = body.get("message", "")
        super().__init__(f"{status} {self.reason}: {self.message}")


class Connection:
    """An open connection with the credential of one kubeconfig."""

    def __init__(self, opened: aiohttp.ClientSession) -> None:
        self._session = opened

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> Object:
        """Sends one request and returns the decoded answer.

        Raises:
            ApiError: any answer of 400 and more, and no answer within 30 s.
        """
        try:
            async with self._session.request(
                method,
                path,
                params=query,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type, "Accept": JSON},
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            ) as response:
                text = await response.text()
                if response.status >= FIRST_ERROR_STATUS:
                    raise _refusal(response.status, text)
                answer: Object = json.loads(text)
                return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(
                503, {"reason": "ServiceUnavailable", "message": f"{method} {path}: {_told(error)}"}
            ) from error

    async def apply(self, path: str, body: Object) -> Object:
        """Server-side apply: creates the object, or makes our fields of it as given."""
        query = {"fieldManager": FIELD_OWNER, "force": "true"}
        return await self.request("PATCH", path, body=body, query=query, content_type=APPLY)

    async def watch(self, path: str, resource_version: str) -> AsyncIterator[Object]:
        """Yields watch events until the server ends the stream; ERROR events are yielded as they are.

        Raises:
            ApiError: the watch was refused, or broke.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        try:
            async with self._session.get(
                path,
                params=query,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=WATCH_SECONDS + 30),
            ) as response:
                if response.status >= FIRST_ERROR_STATUS:
                    raise _refusal(response.status, await response.text())
                async for line in response.content:
                    yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(
                503, {"reason": "ServiceUnavailable", "message": f"watch of {path}: {_told(error)}"}
            ) from error


def _told(error: Exception) -> str:
    """A timeout has no text of its own."""
    return f"{type(error).__name__} {error}".strip()


def _refusal(status: int, text: str) -> ApiError:
    """The aggregator and proxies answer in plain text, everybody else with a Status."""
    try:
        body = json.loads(text)
    except ValueError:
        body = {"message": text}
    return ApiError(status, body)


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[Connection]:
    """Opens a connection with the kubeconfig's current context."""
    async with session(
        kubeconfig, headers={"Impersonate-User": ACCOUNT, "Impersonate-Group": ADMINISTRATORS}
    ) as opened:
        yield Connection(opened)
