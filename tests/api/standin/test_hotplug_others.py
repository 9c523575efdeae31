"""Answers of addvolume and removevolume to requests at once, dry runs, refused writes and VMs that are being deleted.

Permissions, a missing front proxy and a missing virt-api are in ``test_cluster``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from e2e.lab.api import eventually
from tests.api.standin.hotplugging import (
    VM_ENDPOINT,
    VMI_ENDPOINT,
    Endpoint,
    being_deleted,
    machine_of,
    plugged_in,
    queue_in,
    stopped_vm,
    vm_until_volumes,
    volumes_in,
)
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import Site, add_options
from tests.api.standin.talking import Object

BOTH_MODES = pytest.mark.parametrize("mode", ["legacy", "declarative"])
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
REFUSED_LABEL = "test.example.com/refused"
AT_ONCE, ROUNDS = 8, 10


# Somebody changed the lists between read and patch


@BOTH_MODES
async def test_of_requests_at_once_some_are_refused_with_422_and_the_others_are_written(
    site: Site, kubevirt: KubeVirt, mode: Mode
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    written, refusals = ["root"], []
    for turn in range(ROUNDS):
        names = [f"data-{turn}-{number}" for number in range(AT_ONCE)]
        answers = await asyncio.gather(*(site.add(vm, add_options(name)) for name in names))
        written += [name for name, answer in zip(names, answers, strict=True) if answer.code == 202]
        refusals = [answer.refusal for answer in answers if answer.code != 202]
        if refusals:
            break
    assert set(refusals) == {(422, "Invalid", "the server rejected our request due to an error in our request")}
    await vm_until_volumes(site, vm, *written)


# Other failures of the patch


@asynccontextmanager
async def refusing(site: Site, resources: str) -> AsyncIterator[None]:
    """While the block runs, kube-apiserver forbids all changes of such objects with the label `REFUSED_LABEL`."""
    name = f"refuse-{site.namespace}"
    rule = {"apiGroups": ["kubevirt.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resources]}
    refused = f"!has(oldObject.metadata.labels) || !('{REFUSED_LABEL}' in oldObject.metadata.labels)"
    await site.client.create(
        POLICIES,
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": refused, "message": "refused by the test", "reason": "Forbidden"}],
            },
        },
    )
    await site.client.create(
        BINDINGS,
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    )
    try:
        yield
    finally:
        await site.client.delete(f"{BINDINGS}/{name}")
        await site.client.delete(f"{POLICIES}/{name}")


@pytest.mark.parametrize(
    ("mode", "endpoint", "resources", "message"),
    [
        pytest.param("declarative", VM_ENDPOINT, "virtualmachines", "unable to patch vm: ", id="declarative VM"),
        pytest.param("legacy", VM_ENDPOINT, "virtualmachines/status", "unable to patch vm status: ", id="legacy VM"),
        pytest.param("declarative", VMI_ENDPOINT, "virtualmachineinstances", "unable to patch vmi: ", id="VMI"),
    ],
)
async def test_another_failure_of_the_patch_is_an_internal_error(
    site: Site, kubevirt: KubeVirt, *, mode: Mode, endpoint: Endpoint, resources: str, message: str
) -> None:
    machine = await machine_of(site, endpoint)
    collection = site.vms if endpoint == VM_ENDPOINT else site.vmis
    await kubevirt.become(mode)
    async with refusing(site, resources):
        await site.client.patch(f"{collection}/{machine}", {"metadata": {"labels": {REFUSED_LABEL: "yes"}}})

        async def is_in_force() -> bool:
            tried = add_options("data") | {"dryRun": ["All"]}
            return (await site.add(machine, tried, kind=endpoint)).code != 202

        await eventually(is_in_force, what="the policy is in force", deadline_seconds=30.0)
        answer = await site.add(machine, add_options("data"), kind=endpoint)
    code, reason, text = answer.refusal
    assert (code, reason) == (500, "InternalError")
    assert message in text
    assert "refused by the test" in text


# Dry runs


def stored(vm: Object | None) -> list[str]:
    """The volumes that the VM has, or will have when its queue is worked off."""
    return volumes_in(vm) + [request["addVolumeOptions"]["name"] for request in queue_in(vm)]


@BOTH_MODES
async def test_a_dry_run_answers_202_and_stores_nothing(site: Site, kubevirt: KubeVirt, mode: Mode) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    before = await site.vm(vm)
    answer = await site.add(vm, add_options("data") | {"dryRun": ["All"]})
    assert (answer.code, answer.text) == (202, "")
    after = await site.vm(vm)
    assert stored(after) == ["root"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_dry_run_at_the_vmi_endpoint_stores_nothing(site: Site) -> None:
    vmi = await site.lone_vmi()
    assert (await site.add(vmi, add_options("data") | {"dryRun": ["All"]}, kind=VMI_ENDPOINT)).code == 202
    assert plugged_in(await site.vmi(vmi)) == ["root"]


@BOTH_MODES
async def test_a_dry_run_is_validated(site: Site, kubevirt: KubeVirt, mode: Mode) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    assert (await site.add(vm, add_options("data", serial="a/b") | {"dryRun": ["All"]})).code == 422


@BOTH_MODES
async def test_an_unknown_dry_run_is_really_done(site: Site, kubevirt: KubeVirt, mode: Mode) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    assert (await site.add(vm, add_options("data") | {"dryRun": ["bogus"]})).code == 202
    await vm_until_volumes(site, vm, "root", "data")


@BOTH_MODES
async def test_an_empty_dry_run_list_drops_the_connection(site: Site, kubevirt: KubeVirt, mode: Mode) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    answer = await site.add(vm, add_options("data") | {"dryRun": []})
    assert (answer.code, answer.text.strip()) == (503, "error trying to reach service: EOF")
    assert stored(await site.vm(vm)) == ["root"]


# A VM that is being deleted


@BOTH_MODES
async def test_a_vm_that_is_being_deleted_accepts_anything_and_nothing_is_done_with_it(
    site: Site, kubevirt: KubeVirt, mode: Mode
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    async with being_deleted(site, vm):
        answer = await site.add(vm, add_options("data", serial="not allowed", disk={"bus": "sata"}))
        left = await site.vm(vm)
    assert (answer.code, answer.text) == (202, "")
    assert (volumes_in(left), len(queue_in(left))) == ((["root"], 1) if mode == "legacy" else (["root", "data"], 0))
