"""One small JSON client for a Kubernetes API, for the lab's own errands and for tests that look from outside.

It speaks in paths and decoded JSON, because the lab's objects are written as dictionaries. Every request has a
deadline; an answer that is not 2xx is an `ApiError`. An Api belongs to the event loop that opened it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from e2e.lab.kubeconfig import session

REQUEST_SECONDS = 30.0
POLL_SECONDS = 0.2
FIELD_OWNER = "kubevirt-csi-lab"

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
JSON = "application/json"

Object = dict[str, Any]
Found = TypeVar("Found")


class ApiError(Exception):
    """An answer that is not 2xx (``status`` is its HTTP code), or none at all (``status`` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: no answer, overload, or a server that is starting."""
        return self.status in {0, 429, 500, 502, 503, 504}


class Api:
    """Requests to one API server with the credential of one kubeconfig; made by `connect`."""

    def __init__(self, opened: aiohttp.ClientSession, kubeconfig: Path) -> None:
        self._session = opened
        self.kubeconfig = kubeconfig

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Any:
        """Sends one request and returns the decoded answer: JSON, or text where it is not JSON.

        Raises:
            ApiError: no answer, or one that is not 2xx.
        """
        try:
            async with self._session.request(
                method,
                path,
                headers={"Content-Type": content_type, "Accept": JSON},
                params=query,
                data=None if body is None else json.dumps(body),
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, f"{method} {path} with {self.kubeconfig}: {error!r}") from error
        if not response.ok:
            raise ApiError(response.status, f"{method} {path} with {self.kubeconfig}: {response.status} {text}")
        return json.loads(text) if response.content_type == JSON else text

    async def get(self, path: str, *, query: Mapping[str, str] | None = None) -> Object:
        """The object or list at the path."""
        answer: Object = await self.request("GET", path, query=query)
        return answer

    async def find(self, path: str) -> Object | None:
        """The object at the path, None when there is none."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:  # noqa: PLR2004 - HTTP's own number
                return None
            raise

    async def create(self, path: str, body: Object) -> Object:
        """POST to a collection (or to a subresource such as ``…/token``)."""
        answer: Object = await self.request("POST", path, body=body)
        return answer

    async def ensure(self, path: str, body: Object) -> None:
        """POST to a collection; that the object exists already is not an error."""
        try:
            await self.create(path, body)
        except ApiError as error:
            if error.status != 409:  # noqa: PLR2004 - HTTP's own number
                raise

    async def patch(self, path: str, body: Object) -> Object:
        """JSON merge patch of the object (or subresource) at the path."""
        answer: Object = await self.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        return answer

    async def apply(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply of the object at the path, taking fields over from other owners."""
        query = {"fieldManager": FIELD_OWNER, "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        answer: Object = await self.request("PATCH", path, body=body, query=query, content_type=APPLY_PATCH)
        return answer

    async def delete(self, path: str, body: Object | None = None) -> None:
        """Deletes the object; that there is none is not an error."""
        try:
            await self.request("DELETE", path, body=body)
        except ApiError as error:
            if error.status != 404:  # noqa: PLR2004 - HTTP's own number
                raise


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[Api]:
    """Opens an Api with the kubeconfig's current context, and closes its connections at the end."""
    async with session(kubeconfig) as opened:
        yield Api(opened, kubeconfig)


async def eventually(
    look: Callable[[], Awaitable[Found | None]],
    *,
    what: str,
    deadline_seconds: float,
    poll_seconds: float = POLL_SECONDS,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Found:
    """Looks again and again until something (not None, not False) is found, and returns it.

    Raises:
        TimeoutError: ``what`` did not come true in time.
    """
    try:
        async with asyncio.timeout(deadline_seconds):
            while not (found := await look()):
                await pause(poll_seconds)
            return found
    except TimeoutError as error:
        raise TimeoutError(f"{what}: not so after {deadline_seconds:g} s") from error
