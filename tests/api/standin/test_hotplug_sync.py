"""How hot-plugs come from a VM to its VMI: by the queue of legacy mode, or from the VM's spec in declarative mode."""

from __future__ import annotations

import pytest

from tests.api.standin.entries import order
from tests.api.standin.hotplugging import (
    VMI_ENDPOINT,
    disks_in,
    failure_of,
    plugged_in,
    queue_in,
    set_snapshot,
    stopped_vm,
    vm_until_volumes,
    volumes_in,
)
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import Site, add_options, entry_of, hotplug, phase_of
from tests.api.standin.talking import Object

SYNC = "Error encountered while handling declarative hotplug volumes: "
QUEUE = "Error encountered while handling volume hotplug requests: "


async def patch_spec(site: Site, vm: str, volumes: list[Object], disks: list[Object]) -> None:
    """Sets the VM's volumes and disks after the root disk, past the subresources."""
    root = {"name": "root", "containerDisk": {"image": "root"}}
    spec = {
        "volumes": [root, *volumes],
        "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}, *disks]}},
    }
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"template": {"spec": spec}}})


async def seen(site: Site, vm: str) -> Object:
    """The VM when virt-controller has dealt with its present spec."""
    generation = (await site.vm(vm))["metadata"]["generation"]
    states = await site.client.follow(
        site.vms, vm, lambda vm: (vm or {})["status"].get("observedGeneration") == generation
    )
    return states[-1] or {}


def disk(name: str, bus: str = "scsi") -> Object:
    return {"name": name, "disk": {"bus": bus}}


def ready_in(vmi: Object | None, volume: str) -> bool:
    entry = entry_of(vmi, volume)
    return entry.get("phase") == "Ready" and bool(entry["target"])


@pytest.mark.parametrize("mode", ["legacy", "declarative"])
async def test_a_virt_controller_that_is_late_carries_all_changes_of_a_vm_at_once(
    site: Site, kubevirt: KubeVirt, mode: Mode
) -> None:
    vm = await site.running_vm()
    await kubevirt.become(mode)
    await order(site, f"{site.vms}/{vm}", slow_sync="3s")
    for name in ("one", "two"):
        await site.ready_volume(name)
        assert (await site.add(vm, add_options(name))).code == 202
    assert plugged_in(await site.vmi(vm)) == ["root"]
    states = await site.client.follow(site.vmis, vm, lambda vmi: plugged_in(vmi) != ["root"])
    assert plugged_in(states[-1]) == (["root", "one"] if mode == "legacy" else ["root", "one", "two"])
    await vm_until_volumes(site, vm, "root", "one", "two")
    await site.vmi_until(vm, lambda vmi: ready_in(vmi, "one") and ready_in(vmi, "two"))


# Legacy


async def test_legacy_puts_the_volume_into_both_specs_and_takes_the_request_off_the_queue(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    await site.attached_volume(vm, "data")
    await vm_until_volumes(site, vm, "root", "data")
    assert disks_in(await site.vm(vm)) == ["root", "data"]
    assert plugged_in(await site.vmi(vm)) == ["root", "data"]
    assert (await site.remove(vm, {"name": "data"})).code == 202
    await vm_until_volumes(site, vm, "root")
    await site.vmi_until(vm, lambda vmi: not entry_of(vmi, "data"))
    assert plugged_in(await site.vmi(vm)) == ["root"]


async def test_legacy_works_off_several_requests_in_their_order(site: Site, kubevirt: KubeVirt) -> None:
    vm = await stopped_vm(site, volumes=(hotplug("old"),))
    await kubevirt.become("legacy")
    await set_snapshot(site, vm, "x")
    for name in ("one", "two"):
        assert (await site.add(vm, add_options(name))).code == 202
    assert (await site.remove(vm, {"name": "old"})).code == 202
    await set_snapshot(site, vm, None)
    await vm_until_volumes(site, vm, "root", "one", "two")
    assert volumes_in(await site.vm(vm)) == ["root", "one", "two"]


async def test_legacy_ignores_a_direct_change_of_the_vms_spec_until_the_next_start(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    await patch_spec(site, vm, [hotplug("data")], [disk("data")])
    known = await seen(site, vm)
    assert {condition["type"] for condition in known["status"]["conditions"]} == {"Ready"}
    # A request that comes later is carried out, so what came before would have been too.
    assert (await site.add(vm, add_options("later"))).code == 202
    await site.vmi_until(vm, lambda vmi: plugged_in(vmi) == ["root", "later"])
    await vm_until_volumes(site, vm, "root", "data", "later")


async def test_legacy_waits_for_a_vmi_that_does_not_run_yet_and_says_so(site: Site, kubevirt: KubeVirt) -> None:
    vm = await site.create_vm(volumes=(hotplug("missing"),))
    await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Scheduled")
    await kubevirt.become("legacy")
    assert (await site.add(vm, add_options("data"))).code == 202
    states = await site.client.follow(site.vms, vm, lambda vm: failure_of(vm) != ("", ""))
    refusal = f'Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io "{vm}": VMI is not running'
    assert failure_of(states[-1]) == ("HotPlugVolumeError", QUEUE + refusal)
    assert (volumes_in(states[-1]), len(queue_in(states[-1]))) == (["root", "missing"], 1)
    await site.ready_volume("missing")
    await site.vmi_until(vm, lambda vmi: "data" in plugged_in(vmi))
    await vm_until_volumes(site, vm, "root", "missing", "data")


async def test_legacy_is_stuck_at_two_adds_of_one_source_until_the_vm_stops(site: Site, kubevirt: KubeVirt) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    await set_snapshot(site, vm, "x")
    assert (await site.add(vm, add_options("one", source="claim"))).code == 202
    assert (await site.add(vm, add_options("two", source="claim"))).code == 202
    await set_snapshot(site, vm, None)
    states = await site.client.follow(site.vms, vm, lambda vm: failure_of(vm)[1].startswith(QUEUE))
    assert failure_of(states[-1])[1].endswith("Unable to add volume source [claim] because it already exists")
    assert (await site.add(vm, add_options("later"))).code == 202
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"runStrategy": "Halted"}})
    instances = await site.client.follow(site.vmis, vm, lambda vmi: vmi is None)
    assert all(plugged_in(vmi) == ["root", "one"] for vmi in instances if vmi is not None)
    await vm_until_volumes(site, vm, "root", "one", "two", "later")


async def test_a_vmi_only_hotplug_of_legacy_mode_does_not_enter_the_vms_spec(site: Site, kubevirt: KubeVirt) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("data"), kind=VMI_ENDPOINT)).code == 202
    await site.vmi_until(vm, lambda vmi: ready_in(vmi, "data"))
    assert volumes_in(await site.vm(vm)) == ["root"]


# Switching a running cluster


@pytest.mark.parametrize(("before", "after"), [("legacy", "declarative"), ("declarative", "legacy")])
async def test_what_was_plugged_in_one_mode_is_unplugged_in_the_other(
    site: Site, kubevirt: KubeVirt, before: Mode, after: Mode
) -> None:
    vm = await site.running_vm()
    await kubevirt.become(before)
    await site.attached_volume(vm, "data")
    await vm_until_volumes(site, vm, "root", "data")
    since = (await site.vmi(vm))["metadata"]["resourceVersion"]
    await kubevirt.become(after)
    assert (await site.remove(vm, {"name": "data"})).code == 202
    await site.vmi_until(vm, lambda vmi: not entry_of(vmi, "data"), since=since)
    await vm_until_volumes(site, vm, "root")


async def test_a_vmi_only_hotplug_is_undone_when_the_cluster_becomes_declarative(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("data"), kind=VMI_ENDPOINT)).code == 202
    await site.vmi_until(vm, lambda vmi: ready_in(vmi, "data"))
    await kubevirt.become("declarative")
    await site.vmi_until(vm, lambda vmi: plugged_in(vmi) == ["root"] and not entry_of(vmi, "data"))


async def test_without_a_gate_what_is_plugged_stays_and_a_direct_change_waits_for_the_next_start(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await kubevirt.become("off")
    await patch_spec(site, vm, [], [])
    await seen(site, vm)
    assert ready_in(await site.vmi(vm), "data")
    await kubevirt.become("declarative")
    await site.vmi_until(vm, lambda vmi: not entry_of(vmi, "data"))


# Declarative


async def test_a_direct_change_of_the_vms_spec_is_plugged_in_declarative_mode(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await patch_spec(site, vm, [hotplug("data")], [disk("data")])
    await site.vmi_until(vm, lambda vmi: ready_in(vmi, "data"))
    await patch_spec(site, vm, [], [])
    await site.vmi_until(vm, lambda vmi: not entry_of(vmi, "data"))


async def test_a_changed_definition_is_removed_and_added_again_when_the_old_status_has_gone(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await site.ready_volume("new")
    since = (await site.vmi(vm))["metadata"]["resourceVersion"]
    await patch_spec(site, vm, [hotplug("new") | {"name": "data"}], [disk("data")])
    states = await site.vmi_until(vm, lambda vmi: ready_in(vmi, "data") and source_in(vmi) == "new", since=since)
    seen = [(source_in(state), bool(entry_of(state, "data"))) for state in states]
    gone = seen.index(("", False))
    assert {source for source, _ in seen[:gone]} <= {"data", ""}
    assert ("", True) in seen[:gone]


def source_in(vmi: Object | None) -> str:
    """The DataVolume of the volume ``data`` in the VMI's spec."""
    volumes = (vmi or {}).get("spec", {}).get("volumes", [])
    return next((str(volume["dataVolume"]["name"]) for volume in volumes if volume["name"] == "data"), "")


async def test_nothing_is_synced_with_the_update_strategy_migration(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"updateVolumesStrategy": "Migration"}})
    assert (await site.add(vm, add_options("data"))).code == 202
    await seen(site, vm)
    assert plugged_in(await site.vmi(vm)) == ["root"]
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"updateVolumesStrategy": None}})
    await site.vmi_until(vm, lambda vmi: ready_in(vmi, "data"))


async def test_nothing_is_synced_to_a_vmi_that_does_not_run(site: Site) -> None:
    vm = await site.create_vm(volumes=(hotplug("missing"),))
    await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Scheduled")
    assert (await site.add(vm, add_options("data"))).code == 202
    await seen(site, vm)
    assert plugged_in(await site.vmi(vm)) == ["root", "missing"]
    await site.ready_volume("missing")
    states = await site.vmi_until(vm, lambda vmi: "data" in plugged_in(vmi))
    assert phase_of(states[-1]) == "Running"


async def test_a_volume_without_a_disk_holds_up_all_changes_and_is_told_in_a_condition(site: Site) -> None:
    vm = await site.running_vm()
    await patch_spec(site, vm, [hotplug("data")], [])
    states = await site.client.follow(site.vms, vm, lambda vm: failure_of(vm) != ("", ""))
    reason, message = failure_of(states[-1])
    assert reason == "HotPlugVolumeError"
    assert message == (
        f'{SYNC}admission webhook "virtualmachineinstances-update-validator.kubevirt.io" denied the request: '
        "mismatch between volumes declared (2) and required (1)"
    )
    assert (await site.add(vm, add_options("other"))).code == 202
    await seen(site, vm)
    assert plugged_in(await site.vmi(vm)) == ["root"]
    assert (await site.remove(vm, {"name": "data"})).code == 202
    await site.vmi_until(vm, lambda vmi: plugged_in(vmi) == ["root", "other"])
    await site.client.follow(site.vms, vm, lambda vm: failure_of(vm) == ("", ""))


async def test_all_hotplugs_of_a_vm_travel_in_one_patch(site: Site) -> None:
    vm = await site.running_vm()
    since = (await site.vmi(vm))["metadata"]["resourceVersion"]
    await patch_spec(site, vm, [hotplug("one"), hotplug("two")], [disk("one"), disk("two")])
    states = await site.vmi_until(vm, lambda vmi: len(plugged_in(vmi)) > 1, since=since)
    assert plugged_in(states[-1]) == ["root", "one", "two"]
