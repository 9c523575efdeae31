"""Credentials of one cluster, read anew when their files change or are no longer accepted.

kubernetes_asyncio reads a kubeconfig once; here the files that it came from are looked at (``stat``) before each
request, and a change makes a new client. The old one is closed when its last request or watch has ended, so that a
rotation breaks nothing that is under way. Configurations are explicit, never the library's default: a process holds
two clusters.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import load_incluster_config, load_kube_config
from kubernetes_asyncio.config.incluster_config import SERVICE_CERT_FILENAME, SERVICE_TOKEN_FILENAME

from kubevirt_csi.errors import Unavailable
from kubevirt_csi.version import VERSION

LOAD_SECONDS = 30.0
USER_AGENT = f"kubevirt-csi/{VERSION}"

Load = Callable[[Configuration], Awaitable[list[Path]]]
"""Fills the configuration and returns the files that it depends on."""

log = structlog.get_logger()


def from_kubeconfig(path: Path) -> Load:
    """Its current context. Of a ``tokenFile`` in it a change is noticed when the old token is refused."""

    async def load(configuration: Configuration) -> list[Path]:
        await load_kube_config(str(path), client_configuration=configuration, persist_config=False)
        named = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        return [path, *(Path(name) for name in named if name)]

    return load


def in_cluster(
    *,
    token: Path = Path(SERVICE_TOKEN_FILENAME),
    authority: Path = Path(SERVICE_CERT_FILENAME),
    environment: Mapping[str, str] | None = None,
) -> Load:
    """The pod's service account. kubernetes_asyncio's own hook reads the token each minute besides."""

    async def load(configuration: Configuration) -> list[Path]:
        load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration,
            token_filename=str(token),
            cert_filename=str(authority),
            environ=os.environ if environment is None else environment,
        )
        return [token, authority]

    return load


@dataclass(slots=True, eq=False)
class _Session:
    """A client, the state of its files when they were read, and how many requests use it."""

    client: ApiClient
    files: dict[Path, tuple[int, ...]]
    users: int = 0
    retired: bool = False


class Credentials:
    """The present client of a cluster; ``cluster`` names it in error texts."""

    def __init__(self, load: Load, *, cluster: str) -> None:
        self._load = load
        self._cluster = cluster
        self._session: _Session | None = None
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ApiClient]:
        """A client with the present credentials; it stays open while the block runs.

        Raises:
            Unavailable: there are no credentials that could be read yet.
        """
        session = await self._present()
        session.users += 1
        try:
            yield session.client
        finally:
            session.users -= 1
            await _close_unused(session)

    async def reload(self, refused: ApiClient | None) -> None:
        """Reads the credentials anew, unless somebody did so since ``refused`` was handed out.

        Raises:
            Unavailable: they cannot be read.
        """
        async with self._loading:
            if self._session is None or self._session.client is refused:
                await self._replace()

    async def aclose(self) -> None:
        """Closes the client; to be called when nothing uses it any more."""
        session, self._session = self._session, None
        if session is not None:
            await session.client.close()

    async def _present(self) -> _Session:
        async with self._loading:
            session = self._session
            if session is None:
                return await self._replace()
            if session.files == _state(session.files):
                return session
            try:
                return await self._replace()
            except Unavailable as error:  # half-written files: the old credentials may still do
                log.warning("credentials not reloaded", cluster=self._cluster, error=str(error))
                return session

    async def _replace(self) -> _Session:
        configuration = Configuration()
        before = _state(self._session.files if self._session is not None else ())
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                files = await self._load(configuration)
            client = ApiClient(configuration)
        except Exception as error:
            # kubernetes_asyncio lets through whatever a malformed file leads to, AssertionError and KeyError included.
            raise Unavailable(f"{self._cluster}: its credentials cannot be read: {error!r}") from error
        state = _state(files) | {path: before[path] for path in files if path in before}  # changed meanwhile: once more
        old, self._session = self._session, _Session(client=client, files=state)
        if old is not None:
            log.info("credentials reloaded", cluster=self._cluster)
            old.retired = True
            await _close_unused(old)
        return self._session


async def _close_unused(session: _Session) -> None:
    if session.retired and session.users == 0:
        await session.client.close()


def _state(files: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """What tells a file from a later version of it; of a missing one nothing."""
    state: dict[Path, tuple[int, ...]] = {}
    for path in files:
        state[path] = ()
        with suppress(OSError):
            found = path.stat()
            state[path] = (found.st_ino, found.st_size, found.st_mtime_ns)
    return state
