"""The request function against a real HTTP server that misbehaves."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from kubevirt_csi.errors import (
    DriverError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from kubevirt_csi.infra.answers import Exists, Expired, Missing
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.resources import CLAIMS, DATA_VOLUMES, VIRTUAL_MACHINE_ACTIONS, Call, Verb
from kubevirt_csi.observe import context
from kubevirt_csi.ports.infra import Stale
from tests.unit.infra.fake_api import Clock, FakeApi, Handler, answer, found, reset, status

READ = Call(verb=Verb.GET, resource=CLAIMS, name="pvc-1")
CREATE = Call(verb=Verb.CREATE, resource=DATA_VOLUMES, body={}, repeatable=True)
PLUG = Call(
    verb=Verb.UPDATE, resource=VIRTUAL_MACHINE_ACTIONS, name="worker-1", subresource="addvolume", body={"name": "pvc-1"}
)
RACE = "the server rejected our request due to an error in our request"
AGGREGATOR = answer(503, "service unavailable\n")
TERMINATING = {"causes": [{"reason": "NamespaceTerminating", "message": "namespace tenant-a is being terminated"}]}
DENIED = status(403, "Forbidden", 'virtualmachines.x "worker-1" is forbidden: User "u" cannot update resource "y"')


@pytest.mark.parametrize(
    ("call", "handler", "error", "text"),
    [
        pytest.param(PLUG, status(400, "BadRequest", "bad body"), InvalidArgument, "bad body", id="400"),
        pytest.param(PLUG, status(422, "Invalid", "bus sata"), InvalidArgument, "bus sata", id="422"),
        pytest.param(PLUG, status(422, "Invalid", RACE), Stale, "our request", id="422 lost race"),
        pytest.param(PLUG, status(401, "Unauthorized", "who?"), Unavailable, "credentials", id="401"),
        pytest.param(
            PLUG,
            DENIED,
            PermissionDenied,
            r"infra cluster, namespace tenant-a: update virtualmachines/addvolume\.subresources\.kubevirt\.io "
            r"'worker-1': .*grant the driver's account the verb update",
            id="403 RBAC",
        ),
        pytest.param(
            CREATE,
            status(403, "Forbidden", "x is forbidden: exceeded quota: q, requested: count/datavolumes=1"),
            ResourceExhausted,
            "exceeded quota: q",
            id="403 quota",
        ),
        pytest.param(
            CREATE,
            status(403, "Forbidden", "x is forbidden", details=TERMINATING),
            FailedPrecondition,
            "being deleted",
            id="403 namespace terminating",
        ),
        pytest.param(READ, status(404, "NotFound", "x not found", details={"name": "x"}), Missing, "x not", id="404"),
        pytest.param(READ, answer(404, "404 page not found"), Unavailable, "installed", id="404 of no such API"),
        pytest.param(
            CREATE,
            status(404, "NotFound", "x not found", details={"name": "tenant-a", "kind": "namespaces"}),
            FailedPrecondition,
            "create the namespace",
            id="404 namespace",
        ),
        pytest.param(CREATE, status(409, "AlreadyExists", "there"), Exists, "there", id="409 exists"),
        pytest.param(PLUG, status(409, "Conflict", "VMI is not running"), Stale, "not running", id="409"),
        pytest.param(READ, status(410, "Expired", "too old"), Expired, "too old", id="410"),
        pytest.param(PLUG, answer(413, "too large"), Internal, "413 too large", id="413"),
        pytest.param(READ, status(429, "TooManyRequests", "slow"), Unavailable, "429 slow", id="429"),
        pytest.param(READ, status(500, "InternalError", "webhook"), Unavailable, "500 webhook", id="500"),
        pytest.param(READ, AGGREGATOR, Unavailable, "503 service unavailable", id="503 plain text, read"),
        pytest.param(PLUG, AGGREGATOR, Unavailable, "may have been carried out", id="503 plain text, write"),
        pytest.param(READ, reset, Unavailable, "connection failed", id="reset, read"),
        pytest.param(PLUG, reset, Unavailable, "may have been carried out", id="reset, write"),
        pytest.param(READ, answer(200, "<html>", "text/html"), Unavailable, "not JSON", id="login page"),
    ],
)
async def test_every_answer_becomes_an_error_that_names_it(  # noqa: PLR0917 - the columns of the table
    connection: Connection, api: FakeApi, call: Call, handler: Handler, error: type[Exception], text: str
) -> None:
    api.answers(handler)
    with pytest.raises(error, match=text) as raised:
        await connection.request(call)
    assert "infra cluster, namespace tenant-a: " in str(raised.value)


@pytest.mark.parametrize("failure", [AGGREGATOR, status(500, "InternalError", "x")], ids=["503", "500"])
async def test_a_read_is_repeated_and_its_pauses_grow(
    connection: Connection, api: FakeApi, clock: Clock, failure: Handler
) -> None:
    api.answers(failure, failure, failure, found({"kind": "PersistentVolumeClaim"}))
    assert await connection.request(READ) == {"kind": "PersistentVolumeClaim"}
    assert len(clock.pauses) == 3
    assert clock.pauses == sorted(clock.pauses)


async def test_a_read_survives_dropped_connections(connection: Connection, api: FakeApi) -> None:
    api.answers(reset, reset, reset, found({"kind": "PersistentVolumeClaim"}))
    assert await connection.request(READ) == {"kind": "PersistentVolumeClaim"}


async def test_reads_give_up_within_their_deadline(connection: Connection, api: FakeApi, clock: Clock) -> None:
    api.answers(AGGREGATOR)
    with pytest.raises(Unavailable):
        await connection.request(READ, seconds=10)
    assert clock.time < 10
    assert 4 < len(api.seen) < 20


@pytest.mark.parametrize("failure", [AGGREGATOR, status(500, "InternalError", "x"), status(504, "Timeout", "x")])
async def test_a_write_of_unknown_outcome_is_not_sent_again(
    connection: Connection, api: FakeApi, failure: Handler
) -> None:
    api.answers(failure)
    with pytest.raises(Unavailable):
        await connection.request(PLUG)
    assert len(api.seen) == 1


async def test_a_write_is_sent_again_when_twice_comes_to_the_same_as_once(connection: Connection, api: FakeApi) -> None:
    api.answers(AGGREGATOR, status(409, "AlreadyExists", "made by the first"))
    with pytest.raises(Exists):
        await connection.request(CREATE)


@pytest.mark.parametrize("code", [429, 503])
async def test_what_the_server_turned_away_is_sent_again_when_it_says_so(
    connection: Connection, api: FakeApi, clock: Clock, code: int
) -> None:
    api.answers(answer(code, "later", headers={"Retry-After": "2"}), answer(202))
    assert await connection.request(PLUG) == {}
    assert clock.pauses == [2.0]
    assert [seen.body for seen in api.seen] == [{"name": "pvc-1"}] * 2


async def test_a_retry_after_beyond_the_deadline_is_not_waited_for(
    connection: Connection, api: FakeApi, clock: Clock
) -> None:
    api.answers(answer(429, "later", headers={"Retry-After": "60"}))
    with pytest.raises(Unavailable, match="429 later"):
        await connection.request(READ, seconds=30)
    assert clock.pauses == []


async def test_a_server_that_never_answers_is_unavailable_at_the_deadline(connection: Connection, api: FakeApi) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    api.answers(found({}), never)
    await connection.request(READ)  # opens the connection
    with pytest.raises(Unavailable, match="no answer in time; it may have been carried out") as raised:
        await connection.request(PLUG, seconds=0.5)
    assert isinstance(raised.value.__cause__, TimeoutError)
    assert [seen.method for seen in api.seen] == ["GET", "PUT"]


async def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_carried_out(
    connection: Connection, api: FakeApi
) -> None:
    api.answers(found({}))
    await connection.request(READ)
    api.server = "http://127.0.0.1:1"
    with pytest.raises(Unavailable) as raised:
        await _elsewhere(connection).request(PLUG)
    assert "carried out" not in str(raised.value)
    assert isinstance(raised.value.__cause__, aiohttp.ClientConnectorError)


async def test_requests_carry_our_name_the_verb_and_the_content_type(connection: Connection, api: FakeApi) -> None:
    api.answers(found({}))
    await connection.request(
        Call(verb=Verb.PATCH, resource=CLAIMS, name="pvc-1", body=[{"op": "remove", "path": "/a"}])
    )
    seen = api.seen[0]
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/tenant-a/persistentvolumeclaims/pvc-1")
    assert seen.body == [{"op": "remove", "path": "/a"}]
    assert seen.headers["Content-Type"] == "application/json-patch+json"
    assert seen.headers["User-Agent"].startswith("kubevirt-csi/")
    assert seen.headers["Authorization"] == "Bearer first"


async def test_a_call_remembers_that_something_was_written_only_for_writes(
    connection: Connection, api: FakeApi
) -> None:
    api.answers(found({}))
    work = context.Work()
    context.begin(work)
    await connection.request(READ)
    assert not work.written
    await connection.request(CREATE)
    assert work.written


@pytest.mark.parametrize("code", [*range(400, 420), 422, 423, 425, 429, 431, *range(500, 506), 511, 599])
async def test_no_status_escapes_the_table(connection: Connection, api: FakeApi, code: int) -> None:
    api.answers(status(code, "X", "text"))
    with pytest.raises((DriverError, Missing, Exists, Expired, Stale), match="text"):
        await connection.request(PLUG)


def _elsewhere(connection: Connection) -> Connection:
    """The same connection after its server's address is one where nothing listens."""
    session = connection._credentials._session
    assert session is not None
    session.client.configuration.host = "http://127.0.0.1:1"
    return connection
