"""Sessions by the kubeconfigs that the lab writes: with a certificate, with a token, and a clear word on others."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from e2e.lab.kubeconfig import session
from e2e.lab.pki import Authority, KeyPair, kubeconfig
from e2e.lab.ports import Ports


@asynccontextmanager
async def server(authority: Authority, folder: Path) -> AsyncIterator[str]:
    """Says who asks: the client certificate's name, else the Authorization header."""
    files = authority.issue_server("server", ["127.0.0.1"]).write(folder, "server")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pair.certificate.decode())
    trust.verify_mode = ssl.CERT_OPTIONAL
    trust.load_cert_chain(files.certificate, files.key)

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        names = dict(part[0] for part in certificate["subject"]) if certificate else {}
        return web.Response(text=names.get("commonName") or request.headers.get("Authorization"))

    application = web.Application()
    application.router.add_get("/who", who)
    runner = web.AppRunner(application)
    await runner.setup()
    with Ports() as ports:
        port = ports.take()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=trust).start()
        try:
            yield f"https://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def asked(folder: Path, authority: Authority, credential: KeyPair | str) -> str:
    """What the server sees of a session with this credential."""
    async with server(authority, folder) as url:
        file = folder / "kubeconfig"
        file.write_bytes(kubeconfig(server=url, authority=authority.pair.certificate, credential=credential))
        async with session(file) as opened, opened.get("/who") as response:
            return await response.text()


async def test_a_session_shows_the_certificate_of_the_kubeconfig(tmp_path: Path) -> None:
    authority = Authority("authority")
    assert await asked(tmp_path, authority, authority.issue_client("somebody")) == "somebody"


async def test_a_session_sends_the_token_of_the_kubeconfig(tmp_path: Path) -> None:
    assert await asked(tmp_path, Authority("authority"), "secret") == "Bearer secret"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"current-context": "a", "contexts": []}', "apiVersion: v1\nkind: Config\n"]
)
async def test_any_other_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"{file} is not a kubeconfig of the lab"):
        async with session(file):
            pass
