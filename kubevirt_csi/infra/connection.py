"""The one door to the management cluster's API server: requests and watch streams, with deadlines and the error map.

Whatever goes wrong comes out as one of the driver's errors or as one of the signals of ``answers``. A write whose
outcome is unknown is never sent again, unless its call says that twice comes to the same as once. (aiohttp itself
repeats a PUT or DELETE once, at once, when the connection drops; a hot-plug request sent twice answers 409.)
It must not know what the objects mean.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import aiohttp
from kubernetes_asyncio.client import ApiClient

from kubevirt_csi.errors import Unavailable
from kubevirt_csi.infra.answers import Again, Answer, Failure, Place, judge, read, unreachable
from kubevirt_csi.infra.credentials import USER_AGENT, Credentials
from kubevirt_csi.infra.resources import JSON, Call, Object
from kubevirt_csi.observe import context
from kubevirt_csi.waiting import Pauses

REQUEST_SECONDS = 30.0
"""From the call to its answer, attempts and pauses included."""
READ_ATTEMPT_SECONDS = 15.0
"""A read that hangs leaves time for another attempt."""
CONNECT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Result = TypeVar("Result")
Pause = Callable[[float], Awaitable[None]]


class _AttemptFailed(Exception):
    """Carries the failure from one attempt to the loop over attempts."""

    def __init__(self, failure: Failure, client: ApiClient | None = None) -> None:
        super().__init__(str(failure.error))
        self.failure = failure
        self.client = client


class Connection:
    """Calls to one cluster, in one namespace, with the present credentials."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        place: Place,
        pause: Pause = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self.place = place
        self._pause = pause
        self._now = now

    async def request(self, call: Call, *, seconds: float = REQUEST_SECONDS) -> Object:
        """Sends the call and returns the decoded answer, an empty object when its body is empty.

        Raises:
            Missing, Exists, Stale, Expired, Refused: see ``answers``.
            Unavailable: no answer in time, or the server is not ready; of a write the outcome may be unknown.
            PermissionDenied, ResourceExhausted, FailedPrecondition, Internal: by the table of ``answers``.
        """
        if call.writes:
            context.mark_written()

        async def attempt(left: float) -> Object:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            try:
                async with (
                    asyncio.timeout(min(left, READ_ATTEMPT_SECONDS) if call.verb.reads else left),
                    self._credentials.client() as client,
                    await self._opened(client, call, timeout) as response,
                ):
                    body = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _AttemptFailed(unreachable(call, self.place, error, sent=True)) from error
            return self._decoded(call, body)

        return await self._repeated(call, attempt, seconds=seconds)

    @asynccontextmanager
    async def stream(self, call: Call, *, idle_seconds: float) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Opens a watch and hands over its chunks, which end with the stream.

        The block, and nothing but it, sees ``Unavailable`` when the connection breaks or is silent for too long.

        Raises:
            Expired, Unavailable, PermissionDenied: as for ``request``, when the watch cannot be opened.
        """
        async with AsyncExitStack() as stack:

            async def attempt(left: float) -> aiohttp.ClientResponse:
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=idle_seconds)
                async with AsyncExitStack() as opening:
                    try:
                        async with asyncio.timeout(min(left, READ_ATTEMPT_SECONDS)):
                            client = await opening.enter_async_context(self._credentials.client())
                            response = await self._opened(client, call, timeout)
                    except TimeoutError as error:
                        raise _AttemptFailed(unreachable(call, self.place, error, sent=True)) from error
                    opening.callback(_cut, response)
                    stack.push_async_exit(opening.pop_all())
                    return response

            response = await self._repeated(call, attempt, seconds=REQUEST_SECONDS)
            if response.content_type != JSON:
                advice = "is there a proxy in between that answers for the API server?"
                found = f"the answer is {response.content_type}, not a watch"
                raise Unavailable(self.place.failed(call, found, advice))
            yield self._chunks(call, response)

    async def _chunks(self, call: Call, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(call, self.place, error, sent=True).error from error

    async def _repeated(self, call: Call, attempt: Callable[[float], Awaitable[Result]], *, seconds: float) -> Result:
        """Attempts until one gets through, or the last failure may not be followed by another attempt in time."""
        deadline = self._now() + seconds
        pauses = Pauses(first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        reloaded = False
        while True:
            try:
                return await attempt(deadline - self._now())
            except _AttemptFailed as failed:
                failure, cause = failed.failure, failed.__cause__
                if failure.again is Again.CREDENTIALS and not reloaded:
                    await self._reloaded(failed, seconds=deadline - self._now())
                    reloaded = True
                    continue
                wait = pauses.next() if failure.after is None else failure.after
                if not _may_follow(call, failure.again) or self._now() + wait >= deadline:
                    raise failure.error from cause
            await self._pause(wait)

    async def _reloaded(self, failed: _AttemptFailed, *, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._credentials.reload(failed.client)
        except TimeoutError:
            raise failed.failure.error from failed

    async def _opened(self, client: ApiClient, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Sends the call once and returns the answer with its body unread, if it is 2xx."""
        headers: dict[str, str] = {"Accept": JSON, "Content-Type": call.content_type, "User-Agent": USER_AGENT}
        await client.update_params_for_auth(headers, [], ["BearerToken"])
        headers = {key: value.strip() for key, value in headers.items()}  # a token file may end in a line feed
        try:
            response: aiohttp.ClientResponse = await client.rest_client.request(
                call.verb.method,
                f"{client.configuration.host}{call.path(self.place.namespace)}",
                headers=headers,
                query_params=dict(call.query),
                body=call.body,
                _preload_content=False,
                _request_timeout=timeout,
            )
            if response.ok:
                return response
            async with response:
                answer = read(response.status, response.headers, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _AttemptFailed(unreachable(call, self.place, error, sent=False)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _AttemptFailed(unreachable(call, self.place, error, sent=True)) from error
        raise _AttemptFailed(judge(call, self.place, answer), client)

    def _decoded(self, call: Call, body: bytes) -> Object:
        if not body.strip():
            return {}
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        # An answer of somebody else, with 200: a login page, a proxy. Whether ours was carried out is unknown.
        answer = Answer(status=502, text=f"the answer is not JSON: {body[:100].decode(errors='replace')!r}")
        raise _AttemptFailed(judge(call, self.place, answer))


def _cut(response: aiohttp.ClientResponse) -> None:
    """Ends a watch at once. A TLS farewell would be waited for by nobody, and outlive the event loop."""
    transport = None if response.connection is None else response.connection.transport
    if transport is not None:
        transport.abort()
    response.close()


def _may_follow(call: Call, again: Again) -> bool:
    return again is Again.SAFE or (again is Again.UNKNOWN and call.may_repeat)
