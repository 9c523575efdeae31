"""Sessions with an API server by a kubeconfig that the lab wrote, for the lab's own programs and for tests.

kubernetes_asyncio reads every kind of kubeconfig, but its import takes two seconds of a processor, which each command
and each program of the lab would pay. What is written here has a certificate or a token in it, and that is all.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

LONGEST_LINE = 2**22
"""Bytes; lines of a watch carry whole objects, which are longer than aiohttp's usual lines."""


@asynccontextmanager
async def session(
    kubeconfig: Path, *, headers: Mapping[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session in which paths are those of the current context's API server, which is closed at the end.

    Args:
        kubeconfig: as `e2e.lab.pki.kubeconfig` writes it.
        headers: sent with every request.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a kubeconfig.
    """
    access = await asyncio.to_thread(_read, kubeconfig)
    async with aiohttp.ClientSession(
        access.server,
        connector=aiohttp.TCPConnector(ssl=access.trust),
        headers={**access.headers, **(headers or {})},
        read_bufsize=LONGEST_LINE,
    ) as opened:
        yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    server: str
    trust: ssl.SSLContext
    headers: Mapping[str, str]


def _read(kubeconfig: Path) -> _Access:
    try:
        document = json.loads(kubeconfig.read_text())
        context = _named(document, "context", document["current-context"])
        cluster, user = _named(document, "cluster", context["cluster"]), _named(document, "user", context["user"])
        trust = ssl.create_default_context(cadata=_decoded(cluster, "certificate-authority-data"))
        if "token" in user:
            return _Access(server=cluster["server"], trust=trust, headers={"Authorization": f"Bearer {user['token']}"})
        _present(trust, _decoded(user, "client-certificate-data") + _decoded(user, "client-key-data"))
        return _Access(server=cluster["server"], trust=trust, headers={})
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{kubeconfig} is not a kubeconfig of the lab: {error!r}") from error


def _named(document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {item["name"]: item[kind] for item in document[f"{kind}s"]}[name]
    return found


def _decoded(section: Mapping[str, str], field: str) -> str:
    return base64.b64decode(section[field]).decode()


def _present(trust: ssl.SSLContext, certificate_and_key: str) -> None:
    """Python takes a client certificate from a file only; this one is gone at once, and nobody else's to read."""
    with tempfile.NamedTemporaryFile("w", prefix="client-", suffix=".pem") as file:
        file.write(certificate_and_key)
        file.flush()
        trust.load_cert_chain(file.name)
