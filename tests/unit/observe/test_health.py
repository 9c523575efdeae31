"""The pages, and both servers that show them."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from kubevirt_csi.observe import http_aiohttp, http_threaded
from kubevirt_csi.observe.health import Page, Pages, Readiness
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.settings import HttpAddress

Server = http_aiohttp.HttpServer | http_threaded.HttpServer


def readiness() -> Readiness:
    return Readiness(["caches", "registered"])


def pages(ready: Readiness) -> Pages:
    return Pages(readiness=ready, registry=Metrics(role="node").registry)


def test_a_process_is_not_ready_until_every_condition_holds() -> None:
    state = readiness()
    seen = [state.ready]
    for name, ready in (("caches", True), ("registered", True), ("caches", False)):
        state.set(name, ready=ready, reason="told by the test")
        seen.append(state.ready)
    assert seen == [False, False, True, False]


def test_the_report_tells_each_condition_and_its_reason() -> None:
    state = readiness()
    state.set("caches", ready=True, reason="synced")
    assert state.report() == "[+] caches: synced\n[-] registered: starting\n"


def test_a_condition_that_was_not_declared_is_a_defect() -> None:
    with pytest.raises(KeyError):
        readiness().set("chaches", ready=True, reason="")


def test_readyz_tells_the_conditions_with_its_status() -> None:
    state = readiness()
    assert pages(state).get("/readyz") == Page(
        HTTPStatus.SERVICE_UNAVAILABLE, b"[-] caches: starting\n[-] registered: starting\n"
    )
    for name in ("caches", "registered"):
        state.set(name, ready=True, reason="fine")
    assert pages(state).get("/readyz").status is HTTPStatus.OK


def test_liveness_does_not_depend_on_readiness() -> None:
    assert pages(readiness()).get("/healthz").status is HTTPStatus.OK


def test_the_metrics_tell_what_runs() -> None:
    body = pages(readiness()).get("/metrics").body.decode()
    assert "kubevirt_csi_build_info{" in body
    assert 'role="node"' in body
    assert "process_resident_memory_bytes" in body


@pytest.fixture(params=[http_aiohttp.HttpServer, http_threaded.HttpServer], ids=["aiohttp", "threaded"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    made: Server = request.param(address=HttpAddress("127.0.0.1", 0), pages=pages(readiness()))
    await made.start()
    yield made
    await made.stop()
    await made.stop()  # may be called again


def _fetched(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - an http URL made here
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def fetch(server: Server, path: str) -> tuple[int, str, str]:
    return await asyncio.to_thread(_fetched, f"http://127.0.0.1:{server.port}{path}")


@pytest.mark.parametrize(
    ("path", "status", "content"),
    [
        pytest.param("/healthz", 200, "ok", id="alive"),
        pytest.param("/healthz?verbose", 200, "ok", id="a query is ignored"),
        pytest.param("/readyz", 503, "[-] caches: starting", id="not ready, with reasons"),
        pytest.param("/metrics", 200, "kubevirt_csi_build_info", id="metrics"),
        pytest.param("/", 404, "there are /healthz, /readyz and /metrics", id="anything else"),
    ],
)
async def test_a_server_shows_the_pages(server: Server, path: str, status: int, content: str) -> None:
    got, content_type, body = await fetch(server, path)
    assert got == status
    assert content in body
    assert content_type.startswith("text/plain")


async def test_the_threaded_server_says_so_when_the_event_loop_is_stuck() -> None:
    address = HttpAddress("127.0.0.1", 0)
    made = http_threaded.HttpServer(address=address, pages=pages(readiness()), loop_seconds=0.05)
    answers: list[tuple[int, str, str]] = []
    await made.start()
    client = threading.Thread(target=lambda: answers.append(_fetched(f"http://127.0.0.1:{made.port}/healthz")))
    client.start()
    client.join(10)  # this blocks the loop on purpose: the answer has to come without it
    await made.stop()
    assert answers == [(503, "text/plain; charset=utf-8", "the event loop does not answer\n")]


async def test_without_a_host_both_families_are_served() -> None:
    made = http_threaded.HttpServer(address=HttpAddress(None, 0), pages=pages(readiness()))
    await made.start()
    try:
        assert (await fetch(made, "/healthz"))[0] == 200
    finally:
        await made.stop()
