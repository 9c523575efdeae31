"""Answers of addvolume and removevolume where the machine is missing or in the wrong state, or no gate is on."""

from __future__ import annotations

import pytest

from tests.api.standin.hotplugging import (
    SINGULAR,
    VM_ENDPOINT,
    VMI_ENDPOINT,
    Call,
    Endpoint,
    condition_in,
    conflict,
    details,
    plugged_in,
    stopped_vm,
    vm_until_volumes,
)
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import Site, add_options, entry_of, hotplug

BOTH_MODES = pytest.mark.parametrize("mode", ["legacy", "declarative"])
BOTH_ENDPOINTS = pytest.mark.parametrize("endpoint", [VM_ENDPOINT, VMI_ENDPOINT])
PAUSED = "lab.csi.kubevirt.io/paused"
NEW_TEXT = "Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API."
OLD_TEXT = "Unable to {} Volume because HotplugVolumes feature gate is not enabled."


@BOTH_MODES
@pytest.mark.parametrize("call", ["add", "remove"])
@pytest.mark.parametrize(
    "endpoint",
    [pytest.param(VM_ENDPOINT, id="VM does not exist"), pytest.param(VMI_ENDPOINT, id="VMI does not exist")],
)
async def test_a_machine_that_does_not_exist_is_not_found(
    site: Site, kubevirt: KubeVirt, endpoint: Endpoint, call: Call, mode: Mode
) -> None:
    await kubevirt.become(mode)
    answer = await getattr(site, call)("ghost", add_options("data"), kind=endpoint)
    assert answer.refusal == (404, "NotFound", f'{SINGULAR[endpoint]}.kubevirt.io "ghost" not found')
    assert answer.body["details"] == details(endpoint, "ghost")


@BOTH_MODES
async def test_a_stopped_vm_accepts_with_202_and_the_volume_is_plugged_at_the_next_start(
    site: Site, kubevirt: KubeVirt, mode: Mode
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("data"))).code == 202
    await vm_until_volumes(site, vm, "root", "data")
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"runStrategy": "Always"}})
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data").get("phase") == "Ready")


@BOTH_MODES
async def test_a_vmi_that_does_not_run_is_a_conflict(site: Site, kubevirt: KubeVirt, mode: Mode) -> None:
    vmi = await site.waiting_vmi()
    await kubevirt.become(mode)
    answer = await site.add(vmi, add_options("data"), kind=VMI_ENDPOINT)
    assert answer.refusal == conflict(VMI_ENDPOINT, vmi, "VMI is not running")
    assert answer.body["details"] == details(VMI_ENDPOINT, vmi)


async def test_a_paused_vmi_is_running_and_accepts_with_202(site: Site) -> None:
    vmi = await site.lone_vmi()
    await site.client.patch(f"{site.vmis}/{vmi}", {"metadata": {"annotations": {PAUSED: "true"}}})
    await site.vmi_until(vmi, lambda vmi: condition_in(vmi, "Paused") == "True")
    assert (await site.add(vmi, add_options("data"), kind=VMI_ENDPOINT)).code == 202
    assert plugged_in(await site.vmi(vmi)) == ["root", "data"]


@pytest.mark.parametrize("call", ["add", "remove"])
async def test_a_vmi_of_a_vm_is_refused_in_declarative_mode_before_its_phase_is_looked_at(
    site: Site, call: Call
) -> None:
    vm = await site.create_vm(volumes=(hotplug("missing"),))
    await site.vmi_until(vm, lambda vmi: vmi is not None)
    answer = await getattr(site, call)(vm, add_options("data"), kind=VMI_ENDPOINT)
    assert answer.refusal == (400, "BadRequest", f"VMI {site.namespace}/{vm} is owned by a VM")


async def test_a_vmi_of_a_vm_is_plugged_in_legacy_mode(site: Site, kubevirt: KubeVirt) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    assert (await site.add(vm, add_options("data"), kind=VMI_ENDPOINT)).code == 202
    assert plugged_in(await site.vmi(vm)) == ["root", "data"]


@BOTH_ENDPOINTS
@pytest.mark.parametrize(
    ("version", "call", "message"),
    [
        pytest.param("v1.9.0", "add", NEW_TEXT, id="both gates off, v1.6+: add"),
        pytest.param("v1.6.0", "remove", NEW_TEXT, id="both gates off, v1.6+: remove"),
        pytest.param("v1.5.3", "add", OLD_TEXT.format("Add"), id="gate off, v1.0-v1.5: add"),
        pytest.param("v1.0.0", "remove", OLD_TEXT.format("Remove"), id="gate off, v1.0-v1.5: remove"),
    ],
)
async def test_without_a_gate_everything_is_a_bad_request(
    site: Site, kubevirt: KubeVirt, *, endpoint: Endpoint, version: str, call: Call, message: str
) -> None:
    await kubevirt.configure(version=version, disabled=["DeclarativeHotplugVolumes"])
    vm = await stopped_vm(site)
    for name, body in ((vm, add_options("data")), ("ghost", add_options("data")), (vm, b"{")):
        answer = await getattr(site, call)(name, body, kind=endpoint)
        assert answer.refusal == (400, "BadRequest", message)
