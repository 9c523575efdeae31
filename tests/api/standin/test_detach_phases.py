"""The phases of a volume on its way out of a VM, as ``VMI.status.volumeStatus`` tells them; one step or row a test."""

from __future__ import annotations

import pytest

from tests.api.standin.entries import (
    attached_by,
    deleted_with,
    held_by,
    in_spec,
    order,
    phase_in,
    plug_until,
    pod_of,
    ready,
    step_in,
    steps_of,
    unmounted,
    unplug,
    version_of,
)
from tests.api.standin.site import Site, entry_of


async def test_the_last_volume_is_unplugged_before_its_pod_goes(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    (pod,) = await site.attachment_pods()
    since = await version_of(site, vm)
    await unplug(site, vm, "data")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {}, since=since)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    assert steps_of(states, "data") == [
        ("Ready", "VolumeReady", "Successfully attach hotplugged volume data to VM"),
        ("UnMountedFromPod", "VolumeUnMountedFromPod", "Volume data has been unmounted from virt-launcher pod"),
        ("Detaching", "SuccessfulDelete", f"Deleted hotplug attachment pod {name}, for volume data"),
    ]
    entries = [entry for state in states if (entry := entry_of(state, "data"))]
    assert [(entry["phase"], entry["target"]) for entry in entries[:2]] == [("Ready", "sdb"), ("Ready", "")]
    assert entries[-1]["hotplugVolume"] == {"attachPodName": name, "attachPodUID": uid}
    assert entries[-1]["target"] == ""
    assert all("data" not in in_spec(state) for state in states)
    assert await site.attachment_pods() == []


async def test_the_removed_entry_is_the_event_volume_unplugged(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await unplug(site, vm, "data")
    await site.event_until(vm, "VolumeUnplugged")
    assert entry_of(await site.vmi(vm), "data") == {}


async def test_the_others_stay_ready_while_one_is_detached_and_get_a_pod_without_it(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "one")
    await site.attached_volume(vm, "two")
    since = await version_of(site, vm)
    await unplug(site, vm, "one")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "one") == {}, since=since)
    assert {step_in(state, "two") for state in states} == {ready("two")}
    assert {entry_of(state, "two")["target"] for state in states} == {"sdc"}
    await site.pods_until(1)
    (pod,) = await site.attachment_pods()
    assert held_by(pod) == {"two"}


async def test_a_mounted_volume_is_unmounted_though_it_was_never_ready(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await order(site, f"{site.claims}/data", stuck_attach="MountedToPod")
    vmi = await plug_until(site, vm, "data", "MountedToPod")
    pod = await pod_of(site, vmi, "data")
    since = await version_of(site, vm)
    await unplug(site, vm, "data")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {}, since=since)
    assert steps_of(states, "data")[-2:] == [unmounted("data"), deleted_with(pod, "data")]
    assert "Ready" not in {phase_in(state, "data") for state in states}


async def test_the_pod_of_a_volume_that_was_never_mounted_goes_whether_virt_handler_has_spoken_or_not(
    site: Site,
) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await order(site, f"{site.claims}/data", stuck_attach="AttachedToNode")
    vmi = await plug_until(site, vm, "data", "AttachedToNode")
    pod = await pod_of(site, vmi, "data")
    since = await version_of(site, vm)
    await order(site, f"{site.vms}/{vm}", virt_handler_down="true")
    await unplug(site, vm, "data")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {}, since=since)
    assert steps_of(states, "data") == [attached_by(pod, "data"), deleted_with(pod, "data")]


async def test_a_volume_that_no_pod_holds_leaves_its_entry_at_once(site: Site) -> None:
    vm = await site.running_vm()
    await site.unready_volume("data")
    await plug_until(site, vm, "data", "Bound")
    since = await version_of(site, vm)
    await unplug(site, vm, "data")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {}, since=since)
    assert {phase_in(state, "data") for state in states} <= {"Bound", ""}


async def test_the_claim_of_an_attached_volume_stays_until_the_pod_is_gone(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await site.client.delete(f"{site.claims}/data")
    claim = await site.client.get(f"{site.claims}/data")
    assert "deletionTimestamp" in claim["metadata"]
    await unplug(site, vm, "data")
    await site.client.follow(site.claims, "data", lambda claim: claim is None)
    assert await site.attachment_pods() == []


@pytest.mark.parametrize("phase", ["Ready", "UnMountedFromPod", "Detaching"])
async def test_a_detach_that_was_ordered_to_be_stuck_goes_on_when_the_order_is_taken_back(
    site: Site, phase: str
) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await site.ready_volume("other")
    await order(site, f"{site.claims}/data", stuck_detach=phase)
    await unplug(site, vm, "data")
    await site.vmi_until(vm, lambda vmi: "data" not in in_spec(vmi) and phase_in(vmi, "data") == phase)
    # The VM's work goes on, and yet the volume stays where it is.
    states = [await plug_until(site, vm, "other", "Ready")]
    assert phase_in(states[-1], "data") == phase
    since = states[-1]["metadata"]["resourceVersion"]
    await order(site, f"{site.claims}/data", stuck_detach=None)
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {}, since=since)


async def test_a_slow_detach_keeps_the_volume_ready_and_plugged_for_as_long(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await order(site, f"{site.claims}/data", slow_detach="1h")
    await unplug(site, vm, "data")
    await site.vmi_until(vm, lambda vmi: "data" not in in_spec(vmi))
    await site.ready_volume("other")
    vmi = await plug_until(site, vm, "other", "Ready")
    assert (phase_in(vmi, "data"), entry_of(vmi, "data")["target"]) == ("Ready", "sdb")
    await order(site, f"{site.claims}/data", slow_detach=None)
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {})
