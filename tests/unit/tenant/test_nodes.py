"""``kubevirt-csi node-id``: waiting for the Node to say which VM it is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubevirt_csi.domain.nodes import NodeIdentity
from kubevirt_csi.errors import NotFound, Unavailable
from kubevirt_csi.settings import NodeIdSettings
from kubevirt_csi.tenant.nodes import find_identity, leave_identity

ANSWERING = {"metadata": {}, "spec": {"providerID": "kubevirt://ns/vm1"}}
SILENT: dict[str, Any] = {"metadata": {}, "spec": {}}

pytestmark = pytest.mark.looptime


@dataclass
class FakeNodes:
    """Gives one answer after the other; the last one for ever."""

    answers: list[dict[str, Any] | Exception]
    asked_at: list[float] = field(default_factory=list)

    async def node(self, name: str) -> dict[str, Any]:
        assert name == "prod-a"
        self.asked_at.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def settings(output: Path = Path("/nowhere"), timeout: float = 300.0) -> NodeIdSettings:
    return NodeIdSettings(
        node_name="prod-a",
        infra_namespace=None,
        output=output,
        timeout_seconds=timeout,
        log_level="info",
    )


def content(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


async def test_a_node_that_says_it_is_asked_once() -> None:
    nodes = FakeNodes([ANSWERING])
    assert await find_identity(nodes, settings()) == NodeIdentity(node_id="ns/vm1")
    assert nodes.asked_at == [0]


async def test_it_waits_while_the_node_is_missing_silent_or_out_of_reach() -> None:
    nodes = FakeNodes([NotFound("no node yet"), Unavailable("no API"), SILENT, ANSWERING])
    assert await find_identity(nodes, settings()) == NodeIdentity(node_id="ns/vm1")
    assert [at > earlier for earlier, at in pairwise(nodes.asked_at)] == [True, True, True]
    assert 3.5 <= nodes.asked_at[-1] <= 7


async def test_it_says_what_it_waits_for_once_for_each_reason_and_in_which_ways_it_can_come() -> None:
    with capture_logs() as logs:
        await find_identity(FakeNodes([SILENT, SILENT, NotFound("gone"), ANSWERING]), settings())
    assert [entry["reason"][:4] for entry in logs] == ["spec", "gone"]
    for way in ("infra-vm-name", "kubevirt://NAMESPACE/VM", "cluster-namespace"):
        assert way in logs[0]["ways"]


async def test_it_gives_up_in_the_end_with_the_last_reason() -> None:
    nodes = FakeNodes([SILENT])
    with pytest.raises(Unavailable, match="providerID is not set"):
        await find_identity(nodes, settings(timeout=60))
    assert asyncio.get_running_loop().time() == 60
    assert nodes.asked_at[-1] == 60


@pytest.mark.looptime(False)
async def test_the_command_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    assert await leave_identity(FakeNodes([ANSWERING]), settings(tmp_path / "node-id.json")) == 0
    assert content(tmp_path) == {"node-id.json": {"id": "ns/vm1", "topology": {}}}


async def test_the_command_fails_and_leaves_no_file_when_the_node_does_not_say_it(tmp_path: Path) -> None:
    assert await leave_identity(FakeNodes([SILENT]), settings(tmp_path / "node-id.json", timeout=0)) == 1
    assert content(tmp_path) == {}
