"""Faults ordered by annotation, seen through kube-apiserver: what is answered, and what has really happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from e2e.lab.api import eventually
from tests.api.standin.site import SUBRESOURCES, Site, add_options, datavolume, hotplug, phase_of
from tests.api.standin.talking import MERGE_PATCH, Answer, Client, Object

PREFIX = "lab.csi.kubevirt.io/"
KUBEVIRT = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt"
CDI_REFUSES = 'admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: '
RECOVERY_SECONDS = 30.0
Action = Literal["addvolume", "removevolume"]
ACTIONS: tuple[Action, ...] = ("addvolume", "removevolume")


async def order(client: Client, path: str, **faults: str | None) -> None:
    """Sets annotations of the object, or takes them away; underscores stand for dashes."""
    annotations = {PREFIX + name.replace("_", "-"): value for name, value in faults.items()}
    await client.patch(path, {"metadata": {"annotations": annotations}})


async def ordered(client: Client, path: str) -> dict[str, str]:
    """The faults that the object orders."""
    annotations: dict[str, str] = (await client.get(path))["metadata"].get("annotations", {})
    return {key.removeprefix(PREFIX): text for key, text in annotations.items() if key.startswith(PREFIX)}


@asynccontextmanager
async def cluster_wide(client: Client, **faults: str) -> AsyncIterator[None]:
    """While the block runs the whole cluster has the faults."""
    try:
        await order(client, KUBEVIRT, **faults)
        yield
    finally:
        await order(client, KUBEVIRT, **dict.fromkeys(faults))


def fault(kind: str, action: Action, value: str) -> dict[str, str]:
    return {f"{kind}-{action}": value}


async def machine_for(site: Site, action: Action) -> str:
    """A stopped VM to which the action on the volume ``data`` can be done."""
    return await site.create_vm(run_strategy="Halted", volumes=(hotplug("data"),) if action == "removevolume" else ())


async def send(site: Site, vm: str, action: Action) -> Answer:
    return await (site.add(vm, add_options("data")) if action == "addvolume" else site.remove(vm, {"name": "data"}))


async def is_done(site: Site, vm: str, action: Action) -> bool:
    volumes = [volume["name"] for volume in (await site.vm(vm))["spec"]["template"]["spec"]["volumes"]]
    return ("data" in volumes) == (action == "addvolume")


def is_status(answer: Answer) -> bool:
    return answer.text.startswith("{")


# Refused, and not done


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_request_is_refused_with_the_given_code_reason_and_text_and_nothing_is_done(
    site: Site, action: Action
) -> None:
    vm = await machine_for(site, action)
    await order(site.client, f"{site.vms}/{vm}", **fault("refuse", action, "{code: 409, reason: Odd, text: not now}"))
    assert (await send(site, vm, action)).refusal == (409, "Odd", "not now")
    assert not await is_done(site, vm, action)


async def test_a_bare_code_has_the_reason_that_kubernetes_gives_it(site: Site) -> None:
    vm = await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{vm}", refuse_addvolume="422")
    assert (await send(site, vm, "addvolume")).refusal == (422, "Invalid", "ordered by the lab")


async def test_without_a_number_every_request_is_refused_until_the_annotation_goes(site: Site) -> None:
    vm = await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{vm}", refuse_addvolume="500")
    assert [(await send(site, vm, "addvolume")).code for _ in range(3)] == [500, 500, 500]
    await order(site.client, f"{site.vms}/{vm}", refuse_addvolume=None)
    assert (await send(site, vm, "addvolume")).code == 202


async def test_with_a_number_so_many_requests_are_refused_and_what_is_left_can_be_seen(site: Site) -> None:
    vm = await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{vm}", refuse_addvolume="{code: 500, times: 2}")
    assert (await send(site, vm, "addvolume")).code == 500
    assert "times: 1" in (await ordered(site.client, f"{site.vms}/{vm}"))["refuse-addvolume"]
    assert (await send(site, vm, "addvolume")).code == 500
    assert await ordered(site.client, f"{site.vms}/{vm}") == {}
    assert (await send(site, vm, "addvolume")).code == 202


async def test_requests_at_once_do_not_use_up_the_same_refusal(site: Site) -> None:
    vm = await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{vm}", refuse_addvolume="{code: 429, times: 5}")
    answers = await asyncio.gather(*(site.add(vm, add_options(f"v{number}")) for number in range(20)))
    assert sum(answer.code == 429 for answer in answers) == 5


async def test_a_dropped_request_is_not_done_and_the_answer_is_no_status(site: Site) -> None:
    vm = await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{vm}", refuse_addvolume="drop")
    answer = await send(site, vm, "addvolume")
    assert answer.code >= 500
    assert not is_status(answer)
    assert not await is_done(site, vm, "addvolume")


async def test_a_vmi_has_faults_of_its_own(site: Site) -> None:
    vmi = await site.lone_vmi()
    await order(site.client, f"{site.vmis}/{vmi}", refuse_addvolume="{code: 409, text: not now}")
    answer = await site.add(vmi, add_options("data"), kind="virtualmachineinstances")
    assert answer.refusal == (409, "Conflict", "not now")


async def test_a_fault_of_the_kubevirt_object_is_one_of_every_vm(site: Site) -> None:
    vm = await machine_for(site, "addvolume")
    async with cluster_wide(site.client, refuse_addvolume="{code: 500, text: everywhere, times: 1}"):
        assert (await send(site, vm, "addvolume")).refusal == (500, "InternalError", "everywhere")
        assert await ordered(site.client, KUBEVIRT) == {}


# Done, and the answer lost


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_answer_is_lost_after_the_request_is_done(site: Site, action: Action) -> None:
    vm = await machine_for(site, action)
    await order(site.client, f"{site.vms}/{vm}", **fault("lose", action, "{code: 500, text: lost, times: 1}"))
    assert (await send(site, vm, action)).refusal == (500, "InternalError", "lost")
    assert await is_done(site, vm, action)


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_connection_is_dropped_after_the_request_is_done(site: Site, action: Action) -> None:
    vm = await machine_for(site, action)
    await order(site.client, f"{site.vms}/{vm}", **fault("lose", action, "{code: drop, times: 1}"))
    answer = await send(site, vm, action)
    assert answer.code >= 500
    assert not is_status(answer)
    assert await is_done(site, vm, action)


async def test_what_is_really_refused_is_told_and_uses_nothing_up(site: Site) -> None:
    vm = await machine_for(site, "removevolume")
    await order(site.client, f"{site.vms}/{vm}", lose_addvolume="{code: 500, times: 1}")
    assert (await send(site, vm, "addvolume")).code == 409
    assert "lose-addvolume" in await ordered(site.client, f"{site.vms}/{vm}")


# virt-api


async def test_a_slow_virt_api_answers_after_another_that_was_asked_later(site: Site) -> None:
    slow, quick = await machine_for(site, "addvolume"), await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{slow}", virt_api_slow="2s")
    answered: list[str] = []

    async def ask(vm: str) -> int:
        answer = await send(site, vm, "addvolume")
        answered.append(vm)
        return answer.code

    codes = await asyncio.gather(ask(slow), ask(quick))
    assert [*codes] == [202, 202]
    assert answered == [quick, slow]


async def test_without_virt_api_requests_get_503_in_plain_text_and_volumes_are_still_made(site: Site) -> None:
    vm = await machine_for(site, "addvolume")

    async def answers_with(code: int) -> bool:
        return (await site.client.call("GET", SUBRESOURCES)).code == code

    async with cluster_wide(site.client, virt_api_down="true"):
        await eventually(lambda: answers_with(503), what="virt-api is down", deadline_seconds=RECOVERY_SECONDS)
        answer = await send(site, vm, "addvolume")
        assert (answer.code, is_status(answer)) == (503, False)
        changed = await site.client.call("PATCH", f"{site.vms}/{vm}", {"spec": {}}, content_type=MERGE_PATCH)
        assert changed.code == 500
        assert "failed calling webhook" in changed.text
        await site.client.create(site.datavolumes, datavolume("data"))
    await eventually(lambda: answers_with(200), what="virt-api is back", deadline_seconds=RECOVERY_SECONDS)
    assert (await send(site, vm, "addvolume")).code == 202


# DataVolumes


async def test_a_datavolume_is_refused_with_the_given_code_reason_and_text(site: Site) -> None:
    async with cluster_wide(site.client, refuse_datavolume="{code: 403, text: no more, times: 1}"):
        refused = await site.client.call("POST", site.datavolumes, datavolume("data"))
        assert refused.refusal == (403, "Forbidden", f"{CDI_REFUSES}no more")
        await site.client.create(site.datavolumes, datavolume("data"))


async def test_a_dry_run_is_refused_too_and_does_not_count(site: Site) -> None:
    async with cluster_wide(site.client, refuse_datavolume="{code: 403, times: 1}"):
        refused = await site.client.call("POST", f"{site.datavolumes}?dryRun=All", datavolume("data"))
        assert refused.code == 403
        assert "refuse-datavolume" in await ordered(site.client, KUBEVIRT)


async def test_a_webhook_that_drops_its_connection_fails_the_creation(site: Site) -> None:
    async with cluster_wide(site.client, refuse_datavolume="{code: drop, times: 1}"):
        refused = await site.client.call("POST", site.datavolumes, datavolume("data"))
    assert refused.code == 500
    assert "failed calling webhook" in refused.text


async def create_volume(site: Site, name: str, **faults: str) -> None:
    body = datavolume(name)
    annotations = {PREFIX + key.replace("_", "-"): value for key, value in faults.items()}
    await site.client.create(site.datavolumes, body | {"metadata": {"name": name, "annotations": annotations}})


async def phase_until(site: Site, name: str, phase: str) -> Any:
    states = await site.client.follow(site.datavolumes, name, lambda volume: phase_of(volume) == phase)
    return states[-1]


def conditions_of(volume: Object) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in volume["status"]["conditions"]}


async def test_a_stuck_import_outlasts_another_and_goes_on_when_the_fault_is_cleared(site: Site) -> None:
    await create_volume(site, "stuck", importing="stuck")
    await phase_until(site, "stuck", "ImportInProgress")
    await site.ready_volume("later")
    assert phase_of(await site.client.get(f"{site.datavolumes}/stuck")) == "ImportInProgress"
    for collection in (site.datavolumes, site.claims):  # the claim has a copy of the DataVolume's annotations
        await order(site.client, f"{collection}/stuck", importing=None)
    await phase_until(site, "stuck", "Succeeded")


async def test_a_failed_import_ends_in_phase_failed(site: Site) -> None:
    await create_volume(site, "data", importing="failed")
    failed = await phase_until(site, "data", "Failed")
    assert conditions_of(failed)["Running"] == ("False", "Error")
    assert conditions_of(failed)["Ready"][0] == "False"


async def test_a_slow_import_ends_after_one_that_began_later(site: Site) -> None:
    await create_volume(site, "slow", slow_import="3s")
    await site.ready_volume("quick")
    assert phase_of(await site.client.get(f"{site.datavolumes}/slow")) != "Succeeded"
    await phase_until(site, "slow", "Succeeded")


# Malformed


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        pytest.param("refuse-addvolume", "teapot", "code is 'teapot', but must be an HTTP code from 400", id="value"),
        pytest.param("refuse-addvolum", "409", "no such fault; there are: refuse-addvolume, ", id="name"),
        pytest.param("importing", "stuck", "has no effect on a VirtualMachine; it belongs on: ", id="place"),
    ],
)
async def test_a_malformed_fault_is_an_event_on_its_object_and_has_no_effect(
    site: Site, name: str, value: str, text: str
) -> None:
    vm = await machine_for(site, "addvolume")
    await order(site.client, f"{site.vms}/{vm}", **{name: value})
    await site.event_until(vm, "MalformedFault")
    [message] = [message for reason, message in await site.events_of(vm) if reason == "MalformedFault"]
    assert message.startswith(f"{PREFIX}{name}='{value}': {text}")
    assert (await send(site, vm, "addvolume")).code == 202
