"""Several hot-plugs in one VM spec: how they come into the spec of its VMI, and what the VMI's webhook does to them."""

from __future__ import annotations

from tests.api.standin.entries import condition_in, in_spec, phase_in, version_of
from tests.api.standin.site import Site, add_options, entry_of
from tests.api.standin.talking import Object


async def test_one_refused_entry_holds_up_all_changes_of_the_vm_and_is_told_in_a_condition(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("bad", disk={"bus": "sata"}))).code == 202
    states = await site.client.follow(site.vms, vm, lambda vm: condition_in(vm, "Failure"))
    failure = condition_in(states[-1], "Failure")
    assert (failure["status"], failure["reason"]) == ("True", "HotPlugVolumeError")
    assert failure["message"] == (
        "Error encountered while handling declarative hotplug volumes: admission webhook"
        ' "virtualmachineinstances-update-validator.kubevirt.io" denied the request: '
        "Hotplug configuration for disk [bad] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted."
    )
    assert (await site.add(vm, add_options("data"))).code == 202
    version = (await site.vm(vm))["metadata"]["generation"]
    await site.client.follow(site.vms, vm, lambda vm: (vm or {})["status"].get("observedGeneration") == version)
    assert in_spec(await site.vmi(vm)) == ["root"]
    assert (await site.remove(vm, {"name": "bad"})).code == 202
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready")
    await site.client.follow(site.vms, vm, lambda vm: not condition_in(vm, "Failure"))


async def test_a_volume_added_again_waits_until_its_old_status_has_gone(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    since = await version_of(site, vm)
    assert (await site.remove(vm, {"name": "data"})).code == 202
    assert (await site.add(vm, add_options("data", serial="new"))).code == 202
    states = await site.vmi_until(
        vm, lambda vmi: phase_in(vmi, "data") == "Ready" and serial_in(vmi, "data") == "new", since=since
    )
    seen = [(bool(entry_of(state, "data")), serial_in(state, "data")) for state in states]
    gone = seen.index((False, None))
    assert all(serial != "new" for _, serial in seen[:gone])


def serial_in(vmi: Object | None, volume: str) -> str | None:
    disks = (vmi or {}).get("spec", {}).get("domain", {}).get("devices", {}).get("disks", [])
    return next((disk.get("serial", "") for disk in disks if disk["name"] == volume), None)
