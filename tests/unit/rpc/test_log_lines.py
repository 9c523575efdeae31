"""What a call leaves behind in log and metrics."""

from __future__ import annotations

import io
import json
import os
from collections.abc import MutableMapping

import pytest
from grpclib.exceptions import GRPCError

from kubevirt_csi import errors
from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.observe import logs
from tests.unit.rpc.conftest import Served
from tests.unit.rpc.services import raising

PUBLISH = csi.ControllerPublishVolumeRequest(
    volume_id="pvc-1", node_id="tenant-a/worker-1", secrets={"key": "hunter2"}, volume_context={"serial": "x"}
)


async def test_a_call_is_one_line_with_what_it_was_about(
    log_lines: list[MutableMapping[str, object]], served: Served
) -> None:
    await served.stub.controller_publish_volume(PUBLISH)
    [line] = [line for line in log_lines if line["event"] == "rpc"]
    assert len(str(line.pop("request_id"))) == 16
    assert float(str(line.pop("duration_ms"))) >= 0
    assert line == {
        "event": "rpc",
        "log_level": "info",
        "method": "/csi.v1.Controller/ControllerPublishVolume",
        "code": "OK",
        "volume_id": "pvc-1",
        "node_id": "tenant-a/worker-1",
        "peer_uid": os.getuid(),
    }


async def test_a_field_of_absurd_length_does_not_fill_the_log(
    log_lines: list[MutableMapping[str, object]], served: Served
) -> None:
    await served.stub.controller_publish_volume(csi.ControllerPublishVolumeRequest(volume_id="v" * 2**20))
    [line] = [line for line in log_lines if line["event"] == "rpc"]
    assert line["volume_id"] == "v" * 256


async def test_two_calls_have_two_request_ids(log_lines: list[MutableMapping[str, object]], served: Served) -> None:
    await served.stub.list_volumes(csi.ListVolumesRequest())
    await served.stub.list_volumes(csi.ListVolumesRequest())
    assert len({line["request_id"] for line in log_lines if line["event"] == "rpc"}) == 2


async def test_an_error_is_in_the_line_with_its_code(
    log_lines: list[MutableMapping[str, object]], served: Served
) -> None:
    served.controller.behaviour = raising(errors.NotFound("no such VM"))
    with pytest.raises(GRPCError):
        await served.stub.controller_publish_volume(PUBLISH)
    [line] = [line for line in log_lines if line["event"] == "rpc"]
    text = f"volume {PUBLISH.volume_id}: no such VM"
    assert (line["code"], line["error"], line["log_level"]) == ("NOT_FOUND", text, "info")


async def test_an_unforeseen_exception_is_logged_as_an_error_with_its_traceback(
    log_lines: list[MutableMapping[str, object]], served: Served
) -> None:
    defect = RuntimeError("defect")
    served.controller.behaviour = raising(defect)
    with pytest.raises(GRPCError):
        await served.stub.controller_publish_volume(PUBLISH)
    [line] = [line for line in log_lines if line["event"] == "rpc"]
    assert (line["log_level"], line["exc_info"]) == ("error", defect)


async def test_what_is_asked_all_the_time_is_logged_at_debug(
    log_lines: list[MutableMapping[str, object]], served: Served
) -> None:
    identity = csi.IdentityStub(served.channel)
    await identity.probe(csi.ProbeRequest())
    await identity.get_plugin_info(csi.GetPluginInfoRequest())
    await identity.get_plugin_capabilities(csi.GetPluginCapabilitiesRequest())
    assert [line["log_level"] for line in log_lines if line["event"] == "rpc"] == ["debug"] * 3


async def test_secrets_of_a_request_are_in_no_log_line(served: Served) -> None:
    stream = io.StringIO()
    logs.configure("debug", stream=stream)
    served.controller.behaviour = raising(RuntimeError("defect"))
    with pytest.raises(GRPCError):
        await served.stub.controller_publish_volume(PUBLISH)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert any(line["event"] == "rpc" and "RuntimeError" in line["exception"] for line in lines)
    assert "hunter2" not in stream.getvalue()


async def test_calls_are_counted_and_timed_by_method_and_code(served: Served) -> None:
    await served.stub.list_volumes(csi.ListVolumesRequest())
    served.controller.behaviour = raising(errors.Aborted("busy"))
    with pytest.raises(GRPCError):
        await served.stub.list_volumes(csi.ListVolumesRequest())
    method = "/csi.v1.Controller/ListVolumes"
    for code in ("OK", "ABORTED"):
        labels = {"method": method, "code": code}
        assert served.metrics.registry.get_sample_value("kubevirt_csi_rpc_total", labels) == 1
        assert served.metrics.registry.get_sample_value("kubevirt_csi_rpc_duration_seconds_count", labels) == 1
    assert served.metrics.registry.get_sample_value("kubevirt_csi_rpc_in_flight", {"method": method}) == 0
