from __future__ import annotations

import io
import json
import logging
import re
import warnings
from pathlib import Path

import pytest
import structlog

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.observe import logs

PROTO = Path(__file__).parents[3] / "protos" / "csi.proto"


@pytest.fixture
def output() -> io.StringIO:
    """What the configured logging writes, at level info."""
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    return stream


def lines(output: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_logger_and_fields(output: io.StringIO) -> None:
    structlog.get_logger("kubevirt_csi.x").info("volume created", volume_id="pvc-1")
    [line] = lines(output)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", str(line.pop("time")))
    assert line == {"event": "volume created", "level": "info", "logger": "kubevirt_csi.x", "volume_id": "pvc-1"}


def test_a_librarys_logger_writes_the_same_kind_of_line(output: io.StringIO) -> None:
    logging.getLogger("aiohttp.access").warning("%s is slow", "peer")
    [line] = lines(output)
    assert (line["event"], line["level"], line["logger"]) == ("peer is slow", "warning", "aiohttp.access")


def test_what_is_bound_to_the_context_is_in_every_line(output: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger().info("ours")
        logging.getLogger("library").info("theirs")
    assert [line["request_id"] for line in lines(output)] == ["r1", "r1"]


def test_lines_below_the_level_are_not_written(output: io.StringIO) -> None:
    structlog.get_logger().debug("noise")
    logging.getLogger("library").debug("noise")
    assert lines(output) == []


def test_the_kubernetes_client_never_logs_response_bodies() -> None:
    stream = io.StringIO()
    logs.configure("debug", stream=stream)
    logging.getLogger("kubernetes_asyncio.client.rest").debug("response body: %s", "a Secret")
    logging.getLogger("library").debug("seen")
    assert [line["event"] for line in lines(stream)] == ["seen"]


@pytest.mark.parametrize(
    "name",
    ["secrets", "secret", "token", "api_token", "password", "passphrase", "Authorization", "private_key", "credential"],
)
def test_a_value_under_a_name_that_may_hold_a_secret_is_not_written(output: io.StringIO, name: str) -> None:
    structlog.get_logger().info("x", **{name: "hunter2"}, nested=[{"deep": {name: "hunter2"}}])
    assert "hunter2" not in output.getvalue()
    assert lines(output)[0][name] == "[redacted]"


def test_a_request_is_written_as_its_type_alone(output: io.StringIO) -> None:
    request = csi.CreateVolumeRequest(name="pvc-1", secrets={"key": "hunter2"})
    assert "hunter2" in repr(request)
    structlog.get_logger().info("x", request=request)
    assert lines(output)[0]["request"] == "<CreateVolumeRequest>"


def test_paths_and_errors_are_written_as_text(output: io.StringIO) -> None:
    structlog.get_logger().info("x", path=Path("/dev/vda"), error=ValueError("bad"))
    assert (lines(output)[0]["path"], lines(output)[0]["error"]) == ("/dev/vda", "bad")


def test_a_traceback_is_text_in_the_line(output: io.StringIO) -> None:
    try:
        int("bad")
    except ValueError:
        structlog.get_logger().exception("failed")
    [line] = lines(output)
    assert "ValueError: invalid literal" in str(line["exception"])


def test_warnings_of_the_interpreter_become_lines(output: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    assert "old" in output.getvalue()


def secret_fields() -> list[str]:
    """The names of the fields of csi.proto that carry the option csi_secret."""
    return re.findall(r"(\w+) = \d+\s*\[[^\]]*\(csi_secret\) = true", PROTO.read_text())


def test_every_secret_field_of_csi_has_a_name_that_is_kept_out_of_the_log() -> None:
    found = secret_fields()
    assert len(found) == PROTO.read_text().count("(csi_secret) = true") > 15
    assert all(logs.may_hold_secret(name) for name in found)


def test_a_line_begins_with_what_a_person_looks_for(output: io.StringIO) -> None:
    structlog.get_logger().info("volume created", volume_id="pvc-1")
    assert list(lines(output)[0])[:3] == ["time", "level", "event"]
