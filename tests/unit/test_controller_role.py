"""The controller role as a process: it serves while the infra cluster is away, tells so, and ends in order."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from kubevirt_csi._csi.csi import v1 as csi
from tests.controller_process import PATIENCE_SECONDS, controller, until_ready
from tests.unit.infra.fake_api import FakeApi, serving


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with serving() as running:
        yield running


async def empty_cluster(request: web.Request) -> web.StreamResponse:
    """Grants everything, lists nothing, and keeps watches open."""
    if request.method == "POST":
        return web.json_response({"status": {"allowed": True}}, status=201)
    if "watch" not in request.query:
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})
    stream = web.StreamResponse(headers={"Content-Type": "application/json"})
    await stream.prepare(request)
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1"}}}
    await stream.write(json.dumps(bookmark).encode() + b"\n")
    await asyncio.Event().wait()
    return stream


async def test_it_is_ready_when_the_caches_are_synced_and_a_signal_ends_it_in_order(
    tmp_path: Path, api: FakeApi
) -> None:
    api.answers(empty_cluster)
    async with controller(tmp_path, api.kubeconfig(tmp_path / "kubeconfig")) as role:
        await until_ready(role)
        async with Channel(path=str(role.socket)) as channel:
            probe = await csi.IdentityStub(channel).probe(csi.ProbeRequest(), timeout=10)
            assert probe.ready is True
            capabilities = await csi.ControllerStub(channel).controller_get_capabilities(
                csi.ControllerGetCapabilitiesRequest(), timeout=10
            )
            assert csi.ControllerServiceCapabilityRpcType.PUBLISH_UNPUBLISH_VOLUME in {
                each.rpc.type for each in capabilities.capabilities if each.rpc is not None
            }
        assert "kubevirt_csi_rpc_total" in (await role.get("/metrics"))[1]
        role.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await role.process.communicate()
        assert role.process.returncode == 0
        assert not role.socket.exists()


async def test_while_the_infra_cluster_is_away_it_lives_tells_why_it_is_not_ready_and_answers_unavailable(
    tmp_path: Path, api: FakeApi
) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    kubeconfig.write_text(json.dumps(config))
    async with controller(tmp_path, kubeconfig) as role:
        assert (await role.get("/healthz"))[0] == 200
        status, reasons = await role.get("/readyz")
        assert status == 503
        assert "virtualmachines.kubevirt.io" in reasons
        async with Channel(path=str(role.socket)) as channel:
            assert (await csi.IdentityStub(channel).probe(csi.ProbeRequest(), timeout=10)).ready is False
            with pytest.raises(GRPCError) as refused:
                await csi.ControllerStub(channel).delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-1"), timeout=5)
        assert refused.value.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
