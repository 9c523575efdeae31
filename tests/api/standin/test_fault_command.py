"""The lab's command for faults, on a lab that is made of the tests' management cluster and a gateway of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from e2e.lab import faultcommand, gateway, gatewaycontrol
from e2e.lab.management import NAMESPACE
from e2e.lab.ports import Ports
from e2e.lab.state import LabDirectory, LabError, State
from tests.api.standin.conftest import StandIn
from tests.api.standin.site import NUMBERS, vm
from tests.api.standin.talking import Client

VMS = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines"
KUBEVIRT = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt"
PREFIX = "lab.csi.kubevirt.io/"

Fault = Callable[..., Coroutine[Any, Any, list[str]]]


@pytest.fixture
async def door(standin: StandIn) -> AsyncIterator[gateway.Gateway]:
    with Ports() as ports:
        async with gateway.serve(port=ports.take(), target=standin.management.port) as door:
            yield door


@pytest.fixture
async def lab(standin: StandIn, door: gateway.Gateway, tmp_path: Path) -> AsyncIterator[LabDirectory]:
    """The folder of a lab that runs."""
    directory = LabDirectory(tmp_path / "lab")
    lock = directory.lock()
    assert lock is not None
    directory.data.mkdir()
    kubeconfigs = {"management": str(standin.management.admin_kubeconfig)}
    state = State(status="ready", launcher=0, init=0, started_at=time.time(), machines="none", kubeconfigs=kubeconfigs)
    directory.write(state)
    try:
        async with gatewaycontrol.listen(door, directory.gateway):
            yield directory
    finally:
        os.close(lock)


@pytest.fixture
def fault(lab: LabDirectory, capsys: pytest.CaptureFixture[str]) -> Fault:
    """Runs the command and returns what it prints."""

    async def run(*arguments: str) -> list[str]:
        parser = argparse.ArgumentParser()
        faultcommand.add_to(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
        options = parser.parse_args(["fault", *arguments])
        capsys.readouterr()
        assert await asyncio.to_thread(options.command, lab, options) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
async def machine(client: Client) -> AsyncIterator[str]:
    """A stopped VM in the lab's namespace; no fault is left behind."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert (await client.call("POST", "/api/v1/namespaces", namespace)).code in (201, 409)
    name = f"vm-{next(NUMBERS)}"
    await client.create(VMS, vm(name, run_strategy="Halted"))
    try:
        yield name
    finally:
        await client.delete(f"{VMS}/{name}")


async def faults_on(client: Client, path: str) -> dict[str, str]:
    found: dict[str, str] = (await client.get(path))["metadata"].get("annotations", {})
    return {key: text for key, text in found.items() if key.startswith(PREFIX)}


async def test_a_fault_is_set_on_an_object_listed_and_cleared(client: Client, machine: str, fault: Fault) -> None:
    told = f"VirtualMachine {NAMESPACE}/{machine}: slow-attach=5s"
    assert await fault("set", "slow-attach", "5s", "--on", f"vm/{machine}") == [told]
    assert await faults_on(client, f"{VMS}/{machine}") == {f"{PREFIX}slow-attach": "5s"}
    assert told in await fault("list")
    assert await fault("clear", "slow-attach") == [f"VirtualMachine {NAMESPACE}/{machine}: slow-attach is cleared"]
    assert await faults_on(client, f"{VMS}/{machine}") == {}


async def test_a_fault_of_the_whole_cluster_is_one_of_the_kubevirt_object(client: Client, fault: Fault) -> None:
    try:
        assert await fault("set", "slow-detach", "1s") == ["KubeVirt kubevirt/kubevirt: slow-detach=1s"]
        assert await faults_on(client, KUBEVIRT) == {f"{PREFIX}slow-detach": "1s"}
    finally:
        await fault("clear")
    assert await faults_on(client, KUBEVIRT) == {}


async def test_a_switch_needs_no_value(client: Client, machine: str, fault: Fault) -> None:
    await fault("set", "migration", "--on", f"vm/{machine}")
    assert await faults_on(client, f"{VMS}/{machine}") == {f"{PREFIX}migration": "true"}


async def test_clearing_one_object_leaves_the_others(client: Client, machine: str, fault: Fault) -> None:
    try:
        await fault("set", "slow-attach", "1s")
        await fault("set", "slow-attach", "1s", "--on", f"vm/{machine}")
        await fault("clear", "--on", f"vm/{machine}")
        assert await faults_on(client, f"{VMS}/{machine}") == {}
        assert await faults_on(client, KUBEVIRT) == {f"{PREFIX}slow-attach": "1s"}
    finally:
        await fault("clear")


@pytest.mark.parametrize(
    ("arguments", "is_door", "line"),
    [
        (("api-slow", "500ms"), gateway.Door(mode="slow", seconds=0.5), "slow by 0.5 s, 0 connections"),
        (("api-gone",), gateway.Door(mode="gone"), "gone, 0 connections"),
        (("api-half-open",), gateway.Door(mode="half-open"), "half-open, 0 connections"),
        (("api-closes",), gateway.Door(), "open, 0 connections"),
    ],
)
async def test_faults_of_the_api_server_are_told_to_the_gateway(
    door: gateway.Gateway, fault: Fault, arguments: tuple[str, ...], is_door: gateway.Door, line: str
) -> None:
    assert await fault("set", *arguments) == [line]
    assert door.door == is_door
    assert (await fault("list"))[0] == f"the API server, as the controller sees it: {line}"
    assert "open, 0 connections" in await fault("clear")
    assert door.door == gateway.Door()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("set", "slow-attach", "soon"), "slow-attach soon: must be a duration"),
        (("set", "slow"), r"slow true: no such fault; there are: refuse-addvolume, .*, api-slow"),
        (("set",), "no such fault"),
        (("set", "restart"), "restart is not for the whole cluster: say --on vm/NAME"),
        (("set", "importing", "stuck", "--on", "vm/x"), "has no effect on a VirtualMachine"),
        (("set", "slow-attach", "1s", "--on", "vm/nowhere"), 'virtualmachines.kubevirt.io "nowhere" not found'),
        (("set", "slow-attach", "1s", "--on", "pod/x"), "--on pod/x: must be vm/NAME, vmi/NAME, dv/NAME or pvc/NAME"),
        (("set", "api-slow", "soon"), "api-slow soon: must be a duration"),
        (("set", "api-slow", "1h"), "the gateway refuses: 3600.0 seconds: from 0 to 600"),
        (("clear", "slow"), "no fault 'slow'; there are: api-slow, "),
    ],
)
async def test_what_cannot_be_done_is_said_with_what_can(
    fault: Fault, arguments: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(LabError, match=complaint):
        await fault(*arguments)


async def test_a_lab_that_does_not_run_is_said_with_how_to_start_it(tmp_path: Path) -> None:
    options = argparse.Namespace(verb="list", fault=None, value="", on=None)
    with pytest.raises(LabError, match=r"lab nowhere does not run: python -m e2e\.lab up --name nowhere"):
        await asyncio.to_thread(faultcommand.run, LabDirectory(tmp_path / "nowhere"), options)
