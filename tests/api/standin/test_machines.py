"""VirtualMachines and their instances: how they come, restart and go, and what they look like meanwhile."""

from __future__ import annotations

import shutil

from tests.api.standin.site import Site, add_options, datavolume, entry_of, hotplug, phase_of
from tests.api.standin.talking import Object


def status_of(obj: Object | None, field: str) -> object:
    return (obj or {}).get("status", {}).get(field)


async def test_a_vm_with_run_strategy_always_gets_an_instance_that_comes_to_run(site: Site) -> None:
    vm = await site.create_vm()
    states = await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Running")
    phases = list(dict.fromkeys(phase for state in states if (phase := phase_of(state))))
    assert phases == ["Pending", "Scheduling", "Scheduled", "Running"]
    vmi = states[-1]
    (owner,) = vmi["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("VirtualMachine", vm, True)
    assert owner["uid"] == (await site.vm(vm))["metadata"]["uid"]
    assert vmi["status"]["nodeName"] == "infra-1"
    assert vmi["metadata"]["labels"] == {"of": "template", "kubevirt.io/nodeName": "infra-1"}
    assert entry_of(vmi, "root") == {"name": "root", "target": "vda"}


async def test_the_vm_tells_how_far_it_is(site: Site) -> None:
    vm = await site.create_vm()
    states = await site.client.follow(site.vms, vm, lambda vm: status_of(vm, "ready"))
    shown = list(dict.fromkeys(status for state in states if (status := status_of(state, "printableStatus"))))
    assert shown == ["Starting", "Running"]
    assert (status_of(states[-1], "created"), status_of(states[-1], "runStrategy")) == (True, "Always")


async def test_a_halted_vm_has_no_instance_and_a_started_one_keeps_its_hotplugs(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    first = (await site.vmi(vm))["metadata"]["uid"]
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"runStrategy": "Halted"}})
    await site.client.follow(site.vmis, vm, lambda vmi: vmi is None)
    await site.client.follow(site.vms, vm, lambda vm: status_of(vm, "printableStatus") == "Stopped")
    await site.pods_until(0)
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"runStrategy": "Always"}})
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data").get("phase") == "Ready")
    assert states[-1]["metadata"]["uid"] != first
    assert entry_of(states[-1], "data")["target"] == "sdb"


async def test_a_vm_is_not_started_before_its_hotplugs_are_mounted(site: Site) -> None:
    vm = await site.create_vm(volumes=(hotplug("data"),))
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data").get("reason") == "FailedPvcNotFound")
    assert phase_of(await site.vmi(vm)) == "Scheduled"
    await site.client.create(site.datavolumes, datavolume("data"))
    states = await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Running")
    assert entry_of(states[-1], "data")["phase"] == "MountedToPod"
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data").get("phase") == "Ready")


async def test_a_volume_added_while_stopped_is_plugged_at_the_next_start(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("data"))).code == 202
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"runStrategy": "Always"}})
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data").get("phase") == "Ready")


async def test_a_deleted_vm_goes_after_its_instance_and_leaves_no_pods(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await site.client.delete(f"{site.vms}/{vm}")
    states = await site.client.follow(site.vms, vm, lambda vm: vm is None)
    assert "Terminating" in {status_of(state, "printableStatus") for state in states}
    assert (await site.client.call("GET", f"{site.vmis}/{vm}")).code == 404
    assert (await site.client.get(site.pods))["items"] == []
    assert phase_of(await site.client.get(f"{site.claims}/data")) == "Bound"


async def test_an_instance_without_a_vm_is_hotplugged_directly(site: Site) -> None:
    vmi = await site.lone_vmi()
    await site.ready_volume("data")
    assert (await site.add(vmi, add_options("data"), kind="virtualmachineinstances")).code == 202
    await site.vmi_until(vmi, lambda vmi: entry_of(vmi, "data").get("phase") == "Ready")
    assert (await site.remove(vmi, {"name": "data"}, kind="virtualmachineinstances")).code == 202
    await site.vmi_until(vmi, lambda vmi: entry_of(vmi, "data") == {})


async def test_an_instance_whose_machine_has_died_fails_and_is_replaced(site: Site) -> None:
    vm = await site.running_vm()
    first = await site.vmi(vm)
    shutil.rmtree(site.machines / vm)
    states = await site.vmi_until(
        vm,
        lambda vmi: (
            vmi is not None and vmi["metadata"]["uid"] != first["metadata"]["uid"] and phase_of(vmi) == "Running"
        ),
    )
    ended = {phase_of(state) for state in states if state["metadata"]["uid"] == first["metadata"]["uid"]}
    assert "Failed" in ended
