"""A test's event loop closes what has said goodbye, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.lab.pki import Authority
from tests.api.loops import Loop


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    """A TLS server that shakes hands and then neither says nor hears anything; its port, and what to trust."""
    authority = Authority("ca")
    files = authority.issue_server("localhost", ["127.0.0.1"]).write(tmp_path, "server")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(files.certificate, files.key)
    over = threading.Event()

    def serve() -> None:
        plain, _ = listening.accept()
        with serving.wrap_socket(plain, server_side=True):
            over.wait(timeout=30)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=serve)
        server.start()
        yield listening.getsockname()[1], ssl.create_default_context(cadata=authority.pair.certificate.decode())
        over.set()
        server.join(timeout=30)


def warned(loop: asyncio.AbstractEventLoop, server: tuple[int, ssl.SSLContext], *, polite: bool) -> list[str]:
    """What is warned about when the loop has ended with a connection in it, closed politely or not at all."""

    async def connect() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, "127.0.0.1", server[0], ssl=server[1]
        )
        if polite:
            transport.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.run_until_complete(connect())
        loop.close()
        gc.collect()
    return [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)]


def test_a_farewell_that_is_not_answered_ends_with_the_loop(silent: tuple[int, ssl.SSLContext]) -> None:
    assert warned(Loop(), silent, polite=True) == []


def test_a_connection_that_nobody_closed_is_told(silent: tuple[int, ssl.SSLContext]) -> None:
    assert any("unclosed" in text for text in warned(Loop(), silent, polite=False))


async def test_the_tests_run_in_such_a_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), Loop)
