"""Hot-plug requests that succeed: what is answered, and what is written down where, in each mode."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.api.standin.hotplugging import (
    VM_ENDPOINT,
    VMI_ENDPOINT,
    being_deleted,
    disks_in,
    plugged_in,
    queue_in,
    stopped_vm,
    vm_until_volumes,
    volumes_in,
)
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import SUBRESOURCES, Site, add_options, hotplug

BOTH_MODES = pytest.mark.parametrize("mode", ["legacy", "declarative"])


async def test_adding_in_declarative_mode_answers_202_with_an_empty_body_and_writes_the_vms_spec(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    answer = await site.add(vm, add_options("data", serial="abc", errorPolicy="report"))
    assert (answer.code, answer.text) == (202, "")
    written = (await site.vm(vm))["spec"]["template"]["spec"]
    assert written["volumes"][1] == {"name": "data", "dataVolume": {"name": "data", "hotpluggable": True}}
    assert written["domain"]["devices"]["disks"][1] == {
        "name": "data",
        "disk": {"bus": "scsi"},
        "serial": "abc",
        "errorPolicy": "report",
    }


async def test_removing_in_declarative_mode_answers_202_with_an_empty_body_and_clears_the_vms_spec(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted", volumes=(hotplug("data"),))
    answer = await site.remove(vm, {"name": "data"})
    assert (answer.code, answer.text) == (202, "")
    assert (volumes_in(await site.vm(vm)), disks_in(await site.vm(vm))) == (["root"], ["root"])


async def test_adding_in_legacy_mode_answers_202_with_an_empty_body_and_queues_in_the_vms_status(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become("legacy")
    async with being_deleted(site, vm):
        answer = await site.add(vm, add_options("data", serial="abc"))
        written = await site.vm(vm)
    assert (answer.code, answer.text) == (202, "")
    assert volumes_in(written) == ["root"]
    assert queue_in(written) == [
        {
            "addVolumeOptions": {
                "name": "data",
                "disk": {"name": "data", "disk": {"bus": "scsi"}, "serial": "abc"},
                "volumeSource": {"dataVolume": {"name": "data", "hotpluggable": True}},
            }
        }
    ]


async def test_removing_in_legacy_mode_answers_202_with_an_empty_body_and_queues_in_the_vms_status(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await stopped_vm(site, volumes=(hotplug("data"),))
    await kubevirt.become("legacy")
    async with being_deleted(site, vm):
        answer = await site.remove(vm, {"name": "data"})
        written = await site.vm(vm)
    assert (answer.code, answer.text) == (202, "")
    assert volumes_in(written) == ["root", "data"]
    assert queue_in(written) == [{"removeVolumeOptions": {"name": "data"}}]


@BOTH_MODES
async def test_the_vmi_endpoint_changes_the_spec_of_a_vmi_without_a_vm_in_both_modes(
    site: Site, kubevirt: KubeVirt, mode: Mode
) -> None:
    vmi = await site.lone_vmi()
    await kubevirt.become(mode)
    answer = await site.add(vmi, add_options("data"), kind=VMI_ENDPOINT)
    assert (answer.code, answer.text) == (202, "")
    assert plugged_in(await site.vmi(vmi)) == ["root", "data"]
    answer = await site.remove(vmi, {"name": "data"}, kind=VMI_ENDPOINT)
    assert (answer.code, answer.text) == (202, "")
    assert plugged_in(await site.vmi(vmi)) == ["root"]


@BOTH_MODES
async def test_the_options_name_overrides_the_disks_name(site: Site, kubevirt: KubeVirt, mode: Mode) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become(mode)
    assert (await site.add(vm, add_options("data") | {"disk": {"name": "other", "disk": {"bus": "scsi"}}})).code == 202
    await vm_until_volumes(site, vm, "root", "data")
    assert disks_in(await site.vm(vm)) == ["root", "data"]


@BOTH_MODES
async def test_removing_by_the_claims_name_answers_202_and_does_nothing(
    site: Site, kubevirt: KubeVirt, mode: Mode
) -> None:
    vm = await stopped_vm(site, volumes=(hotplug("data") | {"name": "volume"},))
    await kubevirt.become(mode)
    assert (await site.remove(vm, {"name": "data"})).code == 202
    await vm_until_volumes(site, vm, "root", "volume")


@pytest.mark.parametrize("endpoint", [VM_ENDPOINT, VMI_ENDPOINT])
async def test_the_older_version_of_the_group_is_served_too(
    site: Site, endpoint: Literal["virtualmachines", "virtualmachineinstances"]
) -> None:
    path = f"{SUBRESOURCES}alpha3/namespaces/{site.namespace}/{endpoint}/ghost/addvolume"
    answer = await site.client.call("PUT", path, add_options("data"))
    assert answer.refusal[:2] == (404, "NotFound")
