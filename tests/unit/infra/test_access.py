"""What the driver's account needs: the list, the shipped Role, and the calls that the adapters really make."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from aiohttp import web
from structlog.testing import capture_logs

from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import Claim, DataVolume, InfraVolume, NewVolume
from kubevirt_csi.domain.machines import Plug
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.infra.access import log_missing_grants
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.machines import InfraMachines
from kubevirt_csi.infra.resources import GRANTS, PUBLIC, Grant
from kubevirt_csi.infra.selectors import Selector
from kubevirt_csi.infra.volumes import InfraVolumes
from tests.unit.infra.fake_api import FakeApi, Seen, status

RBAC = Path(__file__).parents[3] / "deploy/infra/base/rbac.yaml"
LABELS = {"tenant": "a"}
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+/(?:namespaces/tenant-a/)?(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
METHODS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


async def test_the_adapters_make_the_calls_that_are_granted_and_no_others(connection: Connection, api: FakeApi) -> None:
    async def anything(request: web.Request) -> web.StreamResponse:
        plural = request.path.rsplit("/", 1)[-1]
        if "watch" in request.query:
            return web.json_response({})
        if plural in ("datavolumes", "persistentvolumeclaims", "virtualmachines", "virtualmachineinstances"):
            return web.json_response({"kind": "XList", "metadata": {"resourceVersion": "1"}, "items": []})
        return web.json_response({"metadata": {"labels": LABELS}})

    api.answers(anything)
    await _use_everything(connection)
    assert {_grant(seen) for seen in api.seen} == {*GRANTS, *PUBLIC}


def test_the_shipped_role_is_what_the_driver_needs_and_no_more() -> None:
    role = next(found for found in yaml.safe_load_all(RBAC.read_text()) if found["kind"] == "Role")
    granted = {
        Grant(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == set(GRANTS)


async def test_what_is_missing_is_logged_with_verb_resource_and_namespace(connection: Connection, api: FakeApi) -> None:
    async def review(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["spec"]["resourceAttributes"]
        return web.json_response({"status": {"allowed": asked["subresource"] != "removevolume"}})

    api.answers(review)
    with capture_logs() as logs:
        await log_missing_grants(connection)
    missing = [entry for entry in logs if entry["event"] == "access missing"]
    assert [(entry["verb"], entry["resource"], entry["namespace"]) for entry in missing] == [
        ("update", "virtualmachines/removevolume", "tenant-a"),
        ("update", "virtualmachineinstances/removevolume", "tenant-a"),
    ]


async def test_an_access_check_that_fails_is_not_fatal(connection: Connection, api: FakeApi) -> None:
    api.answers(status(403, "Forbidden", 'User "u" cannot create resource "selfsubjectaccessreviews"'))
    with capture_logs() as logs:
        await log_missing_grants(connection)
    assert [entry["event"] for entry in logs] == ["access not checked"]


async def _use_everything(connection: Connection) -> None:
    volumes = InfraVolumes(connection, labels=LABELS)
    machines = InfraMachines(connection, selector=Selector())
    for cache in (*volumes.caches, *machines.caches):
        await cache._follow()
    claim = Claim(uid="2", resource_version="1")
    data_volume = DataVolume(uid="1")
    volume = InfraVolume(id="v", data_volume=data_volume, claim=claim, serial="s", bus=None)
    await volumes.get("v", fresh=True)
    await volumes.create(
        NewVolume(
            id="v",
            name="v",
            size_bytes=1,
            storage_class=None,
            read_write_many=False,
            serial="s",
            bus=Bus.SCSI,
            digest="d",
        )
    )
    await volumes.annotate(volume, {"a": "b"})
    await volumes.resize(volume, Growth(claim_bytes=2, size_bytes=2))
    await volumes.file_system_overhead(volume)
    await volumes.delete(volume)
    await volumes.delete(InfraVolume(id="v", data_volume=None, claim=claim, serial="s", bus=None))
    await machines.get("m", fresh=True)
    await machines.holders("v", fresh=True)
    await machines.add_volume("m", Plug(volume_id="v", serial="s", bus=Bus.SCSI))
    await machines.remove_volume("m", "v")
    await machines.remove_volume_from_instance("m", "v")


def _grant(seen: Seen) -> Grant:
    found = PATH.fullmatch(seen.path)
    assert found is not None, seen.path
    reading = "watch" if "watch" in seen.query else "get" if found["name"] else "list"
    subresource = f"/{found['sub']}" if found["sub"] else ""
    return Grant(found["group"] or "", f"{found['plural']}{subresource}", METHODS.get(seen.method, reading))
